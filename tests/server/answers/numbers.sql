-- NUMERIC: scales, rounding, signs of zero. Operations that would lose digits are errors here, and are not in this script.
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
-- Roots, powers and logarithms of NUMERIC.
select sqrt(2.0), sqrt(0.0), sqrt(1e-20), sqrt(12345678901234.5), sqrt(2.25), sqrt(0.000123), sqrt(99980001.00), sqrt(2.0000000000000000000001)
select exp(1.0), exp(0.0), exp(-1.5), exp(20.5), exp(-20.0), exp(0.000000001), exp(42.0)
select ln(2.0), ln(1.0), ln(10.0), ln(0.5), ln(1.0001), ln(0.99), ln(1.1001), ln(123456789012345678.9), ln(1e-20), ln(1.00000000001), ln(0.0000123)
select log(100.0), log(2.0), log(0.001), log(2.0, 8), log(2, 1000.5), log(3.0, 9.00), log(1.0), log(0.5, 2), log(10, 2.000)
select power(2.0, 0.5), power(2.0, 2), power(2.5, -3), power(-2.0, 3), power(-2.0, 4), power(0.0, 0), power(0.0, 5.5), power(10.0, 0.30103), power(1.0000001, 100000000), power(9.0, 1.5), power(0.00, 3), power(7, 0.333), power(100.0, -2.5)
select 2.0 ^ 0.5, 2 ^ 0.5, 2 ^ 3, 2.0 ^ 3, 1.5 ^ 2, (-1.5) ^ 3, 10.0 ^ -3, 4.0 ^ 0.5::float8
select pg_typeof(sqrt(2.0)), pg_typeof(sqrt(2)), pg_typeof(exp(1.0)), pg_typeof(ln(2.0)), pg_typeof(log(2.0)), pg_typeof(log(2, 8)), pg_typeof(power(2.0, 3)), pg_typeof(power(2, 3)), pg_typeof(2.0 ^ 3), pg_typeof(2 ^ 3), pg_typeof(2.0 ^ 3::float8), pg_typeof(power(2.0::float4, 3.0)), pg_typeof(sqrt('2')), pg_typeof(sqrt(2.0::real))
select sqrt(a * a), power(b, 2), exp(b), power(abs(a), 0.5) from amounts order by n
select sqrt(-1.0)
select ln(0.0)
select ln(-1.5)
select log(-1.0)
select log(1.0, 2.0)
select log(0.0, 2.0)
select log(2.0, -1.0)
select power(0.0, -1)
select power(-8.0, 0.5)
select (-8.0) ^ 0.333
--$ numeric 2.0 | numeric 3
select sqrt($1)::text, power($1, $2)::text, ($1 ^ $2)::text, ln($2)::text, pg_typeof($1 ^ $2)::text
