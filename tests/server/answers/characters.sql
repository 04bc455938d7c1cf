-- CHAR(n): blanks at its end say nothing against CHAR, VARCHAR and constants, and are lost in TEXT.
create table c4 (code char(4), v varchar(5), t text, n int primary key)
create table c6 (code char(6) primary key, m int)
create table cu (n int primary key, code char(3) unique)
insert into c4 values ('UK','UK ','UK ',1), ('F','F','F',2), (null,null,null,3), ('','  ','',4)
insert into c6 values ('UK', 1), ('F     ', 2), ('abcdef', 3)
insert into c6 values ('F ', 4)
insert into cu values (1, 'a'), (2, 'b  ')
insert into cu values (3, 'a ')
insert into cu values (3, 'abcd')
insert into cu values (3, 'abc     ')
select n from c4 where code = 'UK '
select n from c4 where code = 'UK'
select n from c4 where 'UK     ' = code
select n from c4 where code = 'UK'::text
select n from c4 where code = 'UK '::text
select n from c4 where code = 'UK  '::varchar
select n from c4 where code = 'UK  '::char(9)
select n from c4 where code = t
select n from c4 where code = v
select n from c4 where v = t
select n from c4 where code <> 'UK '
select n from c4 where code in ('UK ', 'x')
select n from c4 where code not in ('UK ', 'x')
select n from c4 where code = any('{"UK  "}')
select n from c4 where code between 'F  ' and 'UK   '
select n from c4 where code > 'F  ' order by n
select n, code from c4 where code is distinct from 'UK  ' order by n
select m from c6 where code = 'UK '
select m from c6 where code = 'UK       '
select m from c6 where code = 'abcdefg'
select m from c6 where code in ('F', 'UK   ')
select m from c6 where code >= 'F ' order by code
select n, m from c4 join c6 on c4.code = c6.code order by n
select n, m from c4 join c6 on c4.t = c6.code order by n
select n, m from c4 join c6 on c4.v = c6.code order by n
select n from c4 where code in (select code from c6)
select n from c4 where t in (select code from c6)
select code, count(*) from c4 group by code order by code
select distinct code from c4 order by code
select length(code), octet_length(code), char_length(code) from c4 order by n
select code || 'x', code || v, code || code, '[' || code || ']' from c4 order by n
select code like 'UK', code like 'UK%', code like 'UK  ', code ilike 'uk__' from c4 order by n
select code ~ '^UK$', code ~ '^UK  $', code !~ 'K$' from c4 order by n
select concat(code, 'x'), concat_ws(',', code, v), upper(code), lower(code), lpad(code, 5, '*'), reverse(code) from c4 order by n
select code::text, code::varchar(3), code::char(2), code::char(6), code::varchar from c4 order by n
select 'a '::char(3) = 'a', 'a '::char(3) = 'a   '::char(5), 'a '::char(3) = 'a '::text, 'a '::char(3) = 'a '::varchar
select 'a'::char(3) < 'a'||chr(1), 'a'::char(3) < 'b', 'ab'::char(2) > 'a'::char(1)
select max(code), min(code), count(distinct code) from c4
select 'x' = 'x ', 'x'::text = 'x ', 'x'::varchar = 'x '
select nullif(code, 'UK ') from c4 order by n
select pg_typeof(code), pg_typeof(code||'x'), pg_typeof(coalesce(code,'x')), pg_typeof(v), pg_typeof(t) from c4 limit 1
update c4 set n = n + 10 where code = 'UK  '
delete from c4 where code = 'F '
select n, code from c4 order by n
--$ bpchar UK
select t from c4 where code = $1
--$ bpchar UK    
select t from c4 where code = $1
--$ varchar UK  
select t from c4 where code = $1
--$ text UK  
select t from c4 where code = $1
--$ text UK
select t from c4 where code = $1
