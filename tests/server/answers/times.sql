-- Fractions are rounded to microseconds.
select '2024-01-01 00:00:00.1234567'::timestamp, '2024-01-01 00:00:00.1234564'::timestamp, '2024-01-01 00:00:00.9999999'::timestamp
select '2024-12-31 23:59:59.9999999'::timestamp, '2024-01-01 00:00:00.123456789012'::timestamp, '2024-01-01 10:00:00.5'::timestamp
select '2024-01-01 24:00:00'::timestamp, '2024-01-01 23:59:60'::timestamp
select '2024-01-01 24:00:01'::timestamp
select '2024-01-01 25:00:00'::timestamp
-- Before Christ, and after 9999.
select '0001-01-01'::date, '0044-03-15 BC'::date, '10000-01-01'::date, '4713-01-01 BC'::date, '0001-12-31 BC'::date, '99999-12-31'::date, '4714-11-24 BC'::date
select '4714-11-23 BC'::date
select '4715-01-01 BC'::date
select '0000-01-01'::date
select '0000-01-01 00:00'::timestamp
select '0044-03-15 10:00 BC'::timestamp, '10000-01-01 01:02:03.4'::timestamp, '0001-01-01 00:00:00 AD'::timestamp, '200000-02-29'::timestamp
select '2024-02-30'::date
select '2023-02-29 BC'::date
select '2024-13-01'::date
select '0001-02-29 BC'::date
select '0001-01-01'::date - 1, '0001-01-01'::date - '0001-12-31 BC'::date, '9999-12-31'::date + 1
select '0001-01-01'::timestamp - interval '1 second', '9999-12-31 23:59:59'::timestamp + interval '1 second'
select '4713-01-01 BC'::date - 1000
create table days (d date primary key, t timestamp)
insert into days values ('0044-03-15 BC', '0044-03-15 12:00 BC'), ('2024-01-01', '2024-01-01 00:00:00.1234567'), ('12345-06-07', '12345-06-07')
select d, t from days order by d
select d, t from days order by t desc
select d from days where d < '0001-01-01'
select d from days where d = '0044-03-15 BC'
select extract(year from d), extract(year from t) from days where d > '2000-01-01' order by d
select min(d), max(d) from days
select d::timestamp, t::date from days order by d
