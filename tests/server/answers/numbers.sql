-- NUMERIC: scales, rounding, signs of zero. What would lose digits is an error here and is not in this script.
select ceil(-0.5), floor(-0.5), round(-0.4), -0.0, 0.00+5, 0.00*5, 0.00, trunc(-0.9), -0.00, 0.00-0.000, - (0.0)
select '-0.00'::numeric, (-0.001)::numeric(5,2), -0.4::int, '-0'::numeric, ceil(-0.5)::text, abs(-0.00), sign(-0.00)
create table amounts (n int primary key, a numeric, b numeric(10,2))
insert into amounts values (1, ceil(-0.5), -0.001), (2, 0.00, 5), (3, 1.0, 1.005), (4, 1.00, -1.005)
select n, a, b, a + b, a * b, a - b from amounts order by n
select a, count(*) from amounts where a = 1 group by a
select n from amounts where a = 0 order by n
select sum(a), sum(b), avg(b), max(b), min(a) from amounts
select 1.10 + 1.1, 1.10 * 1.10, 2.50 - 2.5, 0.00 + 0, 1.5 + 1.50, 100 * 1.00, 5 - 5.00
select 1/3.0, 10.0/3, 100000000000000000000/3.0, 7/2.0, 1.0/7, 22.00/7, 1/8.0, 0.1/3, 123456.789/0.001
select 5.5 % 2, mod(-5.5, 2), -7 % 3, mod(7, -3), 5.50 % 5.5, 0.00 % 3, 7.25 % 0.5
select 1.0/0
select 1.0 % 0
select round(2.5), round(-2.5), round(2.345, 2), round(1250, -2), round(1.5, 4), trunc(2.999, 2), trunc(-1250.5, -2), ceil(1.01), floor(-1.01)
select 1e-20, 1e20::numeric, '1e-28'::numeric, '1.50e3'::numeric, '12e-1'::numeric, '.5'::numeric, '5.'::numeric, '+1.5'::numeric
select 'abc'::numeric
select '1e'::numeric
select ''::numeric
select 1.5::float8::numeric, 0.1::float8::numeric, (1/3.0)::float8::numeric, 1e20::float8::numeric, 123456789::float4::numeric, 0.1::float4::numeric
select 2.5::int, -2.5::int, 2.4999::int, 1.005::numeric(5,2), 12345.678::numeric(7,1), '3.14159265358979323846264338327950288'::numeric(5,2)
select 1000::numeric(5,2)
select 1.0 = 1.00, 1.0 < 1.01, 1.0 in (1.00, 2), 0.0 = -0.0
--$ numeric 1.50
select ($1 + 1)::text, ($1 * 2.00)::text, (-$1)::text
--$ numeric -0.00
select $1::text, ($1 + 5)::text
