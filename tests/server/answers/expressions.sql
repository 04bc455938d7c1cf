-- Tokens that the parser joins or separates.
select -2^2, (-2)^2, - 2 ^ 2, +2^2, -2^2^3, -(2)^2, - 2 * 3 ^ 2
select - -2^2, - - -2^2, -+2^2, +-2^2, -(- 2)^2, - -2^2^3, - -2.0^2*3, 2 - - -2^2
select -2.5::int, -2::text, - 5 % 3, -5 / 2
select 2>-1, 2<>-1, 2>=-1, 2<=-1, 2=-1, 2<-1, 2+-1, 2*-1, 2/-1, 2--1\n+1
select 2>+1, 2<>+1, 2*+1, 2-+1, 2=+2, 2*- -1, 3-(-1)
select 1 where 2>-1 and 3<=-1 or 4<>-4
select 1<-1, 2>=+1, 2<=+2, -(-2)^2, 2-- a comment\n-1
select 'a' 'b'
select 'a'\n'b'
select 'a' \n 'b' \n 'c'
select 'a' -- a comment\n 'b'
select 1 'x'
select 1 as 'x'
select 1 from (select 1) 'x'
select date '2024-02-29', E'a\\\\nb'
-- Types.
select nullif(1, 2.0), pg_typeof(nullif(1,2.0)), pg_typeof(nullif(1.5,2)), pg_typeof(nullif('a','b')), pg_typeof(nullif(1::smallint, 2)), pg_typeof(nullif(1, 2::bigint)), pg_typeof(nullif(1::real, 2::float8)), pg_typeof(nullif(2::float8, 2))
select nullif(1, 1.0), nullif(1::smallint, 1), nullif(1, 1::bigint), nullif(null, 1), nullif(1, null), nullif('a', 'a'), nullif('2024-01-01'::date, '2024-01-01 00:00'::timestamp), pg_typeof(nullif('2024-01-01'::date, '2024-01-01 00:00'::timestamp))
select nullif(1, 2.0) + 1.5, nullif(1, 2.5)
select nullif(1, 'x')
select pg_typeof(1), pg_typeof(1.0), pg_typeof('x'), pg_typeof(null), pg_typeof(1.0::numeric(5,2)), pg_typeof('x'::varchar(3)), pg_typeof(true), pg_typeof(1::bigint), pg_typeof(2^3), pg_typeof(current_date), pg_typeof(localtimestamp)
select concat(true), concat(false, 1, 'x'), concat(1.50, null, true, 'x'::char(3), '2024-01-01'::date), concat_ws(',', true, false, null, 2)
select true::text, true||'x', 'x'||false
-- ANY and ALL in the common type.
select '{1,2}'::int2[]::int[], pg_typeof('{1,2}'::int2[]::int[]), '{1,2}'::int[]::text[], '{1.5,2.5}'::numeric[]::int[], '{1,NULL}'::int[]::numeric[]
select '{1,99999}'::int[]::int2[]
select '{a}'::text[]::int[]
--$ int2[] {2}
select (1.5 = any($1))::text, (2.0 = any($1))::text, (2 = any($1))::text, (40000 = any($1))::text, (2::bigint = any($1))::text
--$ int2[] {1,2,NULL}
select (3 = any($1))::text, (1 <> all($1))::text, (5 <> all($1))::text, (1.0 = any($1))::text
--$ int2[] {1,2}
select ($1::int[])::text, pg_typeof($1::int[])::text, ($1::numeric[])::text
--$ float8[] {1.5,NaN}
select (1.5 = any($1))::text, (2 = any($1))::text, ('NaN'::float8 = any($1))::text
--$ numeric[] {1.50,3}
select (1.5 = any($1))::text, (3 = any($1))::text, (3::float8 = any($1))::text
--$ text[] {a,b}
select ('a' = any($1))::text, ('a'::varchar = any($1))::text
--$ text[] {a,b}
select (1 = any($1))::text
--$ int8[] {32768,3000000000}
select (3000000000 = any($1))::text, (32768::int = any($1))::text, (1::smallint = any($1))::text, (32768.0 = any($1))::text, (32768 <> all($1))::text
--$ int2[] {1,2}
select (32768 = any($1::int[]))::text, (2 = any($1::int8[]))::text, (2 = any($1::text[]::int[]))::text, ($1::float8[])::text
create table wide (id int primary key, small smallint, amount numeric)
insert into wide values (40000, 1, 1.5), (2, 2, 2)
select id from wide where id>-1 and id<>-1 and id>=-1 and id=+id order by id
select -id^2, - small ^ 2, -amount^2, 2-small, 2*-small from wide order by id
--$ int2[] {2,3}
select id::text from wide where id = any($1)
--$ int2[] {2,3}
select id::text from wide where amount = any($1)
--$ int8[] {2,3000000000}
select id::text from wide where small = any($1)
--$ int8[] {2,3000000000,40000}
select id::text from wide where id = any($1)
-- Errors of constants in branches that are not taken.
select case when true then 1 else 1/0 end
select case 1 when 1 then 2 when 1/0 then 3 end
select case when false then 1/0 else 2 end
select case when true then 1::smallint else 300000::smallint end
select case when true then 1 else (1e10)::int end
select coalesce(1, 1/0), coalesce(null, 2, 300000::smallint)
select false and 1/0=1
select true or 1/0=1
select 1 where false and 1/0=1
select id from wide where false and 1/0 = 1
select id from wide where false and id = 1/0
select a.id, b.id from wide a left join wide b on false and b.id = 1/0 order by a.id
select case when id > 0 then 1 else id/0 end from wide
select case when count(*) > 0 then 1 else 1/count(*) end from wide where id = 40000
select 1/0
select 300000::smallint
select id from wide where id = 1/0
select id from wide where id = 2 or id = case when true then 40000 else 1/0 end order by id
update wide set small = case when false then 1/0 else small end
insert into wide values (41000, coalesce(3, 1/0), 1.5)
-- Errors name the table, column and constraint.
insert into wide values (40000, 1, 1), (7, 1, 1)
insert into wide values (null, 1, 1)
update wide set id = 2 where id = 40000
alter table wide add constraint one_small unique (small)
insert into wide values (8, 2, 1)
insert into wide values (8, 9, 1), (9, 9, 1)
-- Relations as numbers and as names.
select 'pg_class'::regclass::text, 'wide'::regclass::text, 'wide_pkey'::regclass::text
select 'pg_class'::regclass::oid, 'pg_type'::regclass::oid, 'pg_attribute'::regclass::oid
select relname from pg_class where oid = 'wide'::regclass
select 'nosuch'::regclass
create table checked (a int check (a > 0), b int unique, c int primary key, constraint both_small check (a + b < 100))
select conname, contype from pg_constraint where conrelid = 'checked'::regclass order by conname
select count(*) from pg_constraint where oid > 4294967295
select count(*) = count(distinct oid) from pg_constraint
select pg_get_constraintdef(oid) from pg_constraint where conrelid = 'checked'::regclass and contype <> 'c' order by 1
alter table checked rename column a to d
insert into checked values (0, 1, 1)
select lower('A'::text), count(*) from generate_series(1, 2) i group by 'A'::text
