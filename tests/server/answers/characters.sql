-- CHAR(n): blanks at the end do not matter in comparisons with CHAR, VARCHAR and constants, and are dropped in TEXT.
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
update c6 set m = m where code='UK '
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
-- Branches, lists and arrays: without one length, a CHAR has the blanks that each value had.
create table ch (code char(4), c2 char(2), v varchar(5), t text, n int primary key)
insert into ch values ('UK','UK','UK ','UK ',1), ('F','F','F','F',2), (null,null,null,null,3), ('','','  ','',4)
select case code when 'UK' then 'toolong' else code end from ch order by n
select case when n = 1 then 'x ' when n = 2 then code end from ch order by n
select case when n = 1 then t else code end, case when n = 1 then code else t end, case when n = 1 then v else code end from ch order by n
select pg_typeof(case when true then t else code end), pg_typeof(case when true then code else t end), pg_typeof(case code when 'x' then 'y' else code end)
select coalesce(code, 'toolong'), coalesce(code, 'x '), coalesce(null, code), coalesce(code, c2), coalesce(c2, code, 'x') from ch order by n
select coalesce(code, t), coalesce(t, code), coalesce(v, code), coalesce(code, v) from ch order by n
select pg_typeof(coalesce('a'::varchar,'b'::text)), pg_typeof(coalesce('a'::text,'b'::varchar)), pg_typeof(coalesce(code,t)), pg_typeof(coalesce(t,code)), pg_typeof(coalesce(v,code)), pg_typeof(greatest(v,t)) from ch limit 1
select coalesce(v, 'longer than five'), coalesce(null, v, 'x') from ch order by n
select coalesce(x, '1.2345'), coalesce(x, 9.999), case when x is null then '12345678.125' else x end from (values (1.5::numeric(3,1)), (null)) as w (x) order by 1
select greatest(code, 'B'), least(code, 'G     '), greatest(code, c2), greatest('a '::char(4), 'a'||chr(1)::char(2)) from ch order by n
select nullif(code,'UK '), nullif('UK ', code), nullif(code, t), nullif(t, code), nullif(code, 'toolong') from ch order by n
select pg_typeof(nullif(v,code)), pg_typeof(nullif(t,code)), pg_typeof(nullif('x',code)), pg_typeof(nullif(v,'x')), pg_typeof(nullif(code,t)) from ch limit 1
select n from ch where code in ('UK '::text, 'F')
select n from ch where code in ('UK '::text)
select n from ch where code not in ('UK '::text)
select n from ch where code in (t, 'UK  ')
select n from ch where code in (t, 'UK  ', 'F ')
select n from ch where code in ('UK  ', 'F '::varchar)
select n from ch where t in ('UK '::char(4), 'F')
select n from ch where t in (code, 'UK ')
select n from ch where v in ('UK'::char(4), 'F')
select n from ch where 'UK ' in (code, t) order by n
select n from ch where code = any(array['UK  ','F'])
select n from ch where code = any(array['UK  '::char(4),'F'])
select n from ch where code = any(array[code,'F '])
select n from ch where code <> all(array['UK  ','F'])
select n from ch where code > any(array['E   ','UK  '])
select n from ch where code = any('{"UK  ","F"}')
select n from ch where code = any('{"UK  ","F"}'::text[])
select n from ch where code = any('{"UK  ","F"}'::bpchar[])
select n from ch where n = any('{1.5,2}'::numeric[])
select n from ch where n = any(array['1','2']::int[])
select n from ch where n = any('{1,2}'::text[])
select n from ch where n = any(array['1','2'])
select n from ch where coalesce(code,'x') in ('UK', 'x  ') order by n
select n from ch where coalesce(code,'x  ') = 'x' or coalesce(c2, code) = code order by n
select n from ch where coalesce(code,'x') = t or coalesce(code,'x') like 'F %' order by n
select a.n, b.n from ch a join ch b on coalesce(a.code,'x') = coalesce(b.c2,'x    ') order by a.n
select n from ch where coalesce(code,'x') in (select coalesce(c2,'x   ') from ch) order by n
select length(coalesce(code,'x ')), octet_length(coalesce(code,'x ')), coalesce(code,'x ')||'|', coalesce(code,'x ')::text||'|', concat(coalesce(code,'x '),'|') from ch order by n
select coalesce(code,'x ')::char(2), coalesce(code,'x ')::varchar(2) from ch order by n
select n from ch order by coalesce(c2,'F    '), n desc
select code, coalesce(c2,'F    ') as k from ch order by k, n
select n, row_number() over (partition by coalesce(code,'F ') order by n) from ch order by n
select count(*), trim(coalesce(c2,'F     ')) || '|' from ch group by coalesce(c2,'F     ') order by 2
select count(distinct coalesce(c2,'F     ')), max(coalesce(code,'Z'))::text, string_agg(coalesce(code,'Z ')||'', ',' order by n) from ch
select count(*) from (select distinct coalesce(c2,'F   ') from ch) as d
select count(*) from (select code from ch union select c2 from ch) as d
select code from ch union all select c2 from ch
select code from ch union all select t from ch
select t from ch union select code from ch order by 1
select length(k) from (values ('a'::char(3)), ('toolong'), ('b '::text)) as w (k) order by 1
values ('a'::char(3)), ('toolong'), ('b  '::text) order by 1
create table cw (code char(4) primary key)
insert into cw select coalesce(c2, 'abc  ') from ch
select code from cw where code = coalesce(null, 'abc      ') order by 1
update ch set code = case when n = 3 then 'none' else code end
update ch set code = case when n = 3 then 'toolong' else code end
select code from ch order by n
--$ bpchar UK    
select coalesce(code, $1)::text from ch order by n
--$ text toolong
select (case when n = 1 then $1 else code end)::text from ch order by n
