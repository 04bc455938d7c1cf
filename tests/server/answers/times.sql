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
select d, extract(year from d), extract(decade from t), extract(century from t), extract(millennium from d), extract(isoyear from d), date_part('year', t) from days order by d
select extract(century from '0001-12-31 BC'::date), extract(century from '0100-12-31 BC'::date), extract(century from '0101-12-31 BC'::date), extract(century from '2000-12-31'::date), extract(century from '2001-01-01'::date), extract(millennium from '1000-01-01 BC'::date), extract(millennium from '1001-01-01 BC'::date), extract(millennium from '2000-01-01'::date), extract(decade from '0001-01-01 BC'::date), extract(decade from '0002-01-01 BC'::date), extract(year from '0001-01-01 BC'::timestamptz)
select min(d), max(d) from days
select d::timestamp, t::date from days order by d
-- TIMESTAMPTZ: offsets are converted to UTC, in which the session is.
select timestamptz '2024-01-01 12:00:00+02', timestamp with time zone '2024-01-01 12:00:00-02:30', '2024-01-01 12:00:00+0230'::timestamptz, '2024-01-01T12:00:00Z'::timestamptz, cast('2024-01-01 12:00:00 UTC' as timestamptz), '2024-01-01 12:00'::timestamptz(6)
select '2024-01-01'::timestamptz, '2024-01-01+02'::timestamptz, '2024-01-01 +02'::timestamptz, '2024-01-01Z'::timestamptz, '2024-01-01 UTC'::timestamptz, '20240101T101112Z'::timestamptz, '2024-01-01 10:00 zulu'::timestamptz, '2024-01-01 10:00 Etc/UTC'::timestamptz, '2024-01-01 10:00gmt'::timestamptz, '20240101 1011'::timestamp, '2024-01-01 101112.5-02'::timestamptz
select '2024-01-01 10:00+0'::timestamptz, '2024-01-01 10:00+023'::timestamptz, '2024-01-01 10:00+02:3'::timestamptz, '2024-01-01 10:00 + 02'::timestamptz, '2024-01-01 10:00-15:59:59'::timestamptz
select '2024-01-01 10:00:00.1234567+02'::timestamptz, '2024-12-31 23:59:59.9999999-01'::timestamptz, '2024-01-01 24:00+02'::timestamptz, '2024-01-01 23:59:60+02'::timestamptz
select '0044-03-15 10:00:00+02 BC'::timestamptz, '0001-01-01 00:00+01'::timestamptz, '4714-11-24 00:00:00+00 BC'::timestamptz, '10000-01-01 01:02:03.4+00'::timestamptz
select timestamp '2024-01-01 12:00:00+02', '2024-01-01 12:00:00 UTC'::timestamp, '2024-01-01T12:00:00-08:00'::timestamp, '2024-01-01 23:00-05'::date
select '2024-01-01 10:00+16'::timestamptz
select '2024-01-01 10:00+02:60'::timestamptz
select '2024-01-01 10:00+99'::timestamp
select '2024-01-01 10:00+'::timestamptz
select '2024-01-01 10:00 foo'::timestamptz
select '2024-01-01 10:00 foo'::timestamp
select '2024-01-01 10:00+02:00 UTC'::timestamptz
select '2024-13-01 10:00:00+02'::timestamptz
select '4714-11-24 00:00:00+01 BC'::timestamptz
select 'x'::timestamptz
select 1::timestamptz
select now()::int
-- The functions of the present time.
select pg_typeof(now()), pg_typeof(current_timestamp), pg_typeof(transaction_timestamp()), pg_typeof(statement_timestamp()), pg_typeof(clock_timestamp()), pg_typeof(localtimestamp), pg_typeof(current_date)
select now() = current_timestamp, now() = transaction_timestamp(), now() = localtimestamp, now() <= clock_timestamp(), now()::date = current_date, now() between localtimestamp and now(), now()::timestamp = localtimestamp
select now() - interval '1 day' < now(), now() > '2024-01-01', now() > '2024-01-01'::date, pg_typeof(now() - interval '1 day'), pg_typeof(current_date + interval '1 day')
select now() where false
select localtimestamp where false
-- Casts, comparisons, and the type that several have.
select '2024-01-01 12:00+02'::timestamptz::timestamp, '2024-01-01 12:00'::timestamp::timestamptz, '2024-01-01'::date::timestamptz, '2024-01-01 23:00-05'::timestamptz::date, '2024-01-01 12:00+02'::timestamptz::text, '2024-01-01 12:00+02'::text::timestamptz, '2024-01-01 12:00+02'::timestamptz::varchar(10)
select '2024-01-01 12:00+02'::timestamptz = '2024-01-01 10:00'::timestamp, '2024-01-01'::date = '2024-01-01 00:00+00'::timestamptz, '2024-01-01 00:00+01'::timestamptz < '2024-01-01'::date, '2024-01-01 12:00+02'::timestamptz = '2024-01-01 13:00+03', '2024-01-01 00:00'::timestamp >= '2024-01-01'::timestamptz, '2024-01-01'::timestamptz is distinct from '2024-01-01'::date
select '2024-01-01 12:00+02'::timestamptz = 1
select '2024-01-01 12:00+02'::timestamptz + 1
select pg_typeof(coalesce(null, '2024-01-01'::timestamp, now())), pg_typeof(coalesce('2024-01-01'::date, now())), pg_typeof(case when true then '2024-01-01'::date else now() end), pg_typeof(greatest(current_date, now())), pg_typeof(coalesce('2024-01-01'::date, localtimestamp)), pg_typeof(coalesce(now(), '2024-01-01'))
select coalesce('2024-01-01'::date, now()), greatest('2024-01-01'::timestamp, '2024-01-01 01:00+02'::timestamptz), least('2024-01-01'::date, '2024-01-01 01:00+02'::timestamptz), case when false then now() else '2024-01-01 10:00'::timestamp end
select '2024-01-02'::date as w union select '2024-01-01 12:00+02'::timestamptz union select '2024-01-03 01:00'::timestamp order by w
select nullif('2024-01-01'::date, '2024-01-01'::timestamptz), nullif('2024-01-01 12:00+02'::timestamptz, '2024-01-01'::timestamp), pg_typeof(nullif('2024-01-01'::timestamp, now())), pg_typeof(nullif(now(), '2024-01-01'))
select '2024-01-01 12:00+02'::timestamptz in ('2024-01-01 10:00'::timestamp, '2024-01-02'), '2024-01-01 12:00+02'::timestamptz in ('2024-01-01 11:00+01', '2024-01-02')
select '2024-01-01 12:00+02'::timestamptz || '', concat('2024-01-01 12:00+02'::timestamptz, 'x'), concat_ws(',', '2024-01-01 12:00+02'::timestamptz, '2024-01-01'::timestamp), length('2024-01-01 12:00:00.5+02'::timestamptz::text)
-- Arithmetic, parts, and time zones.
select '2024-01-31 12:00+02'::timestamptz + interval '1 month', '2024-01-01 12:00+02'::timestamptz - interval '1 day 02:03:04.5', '2024-02-29 00:00+00'::timestamptz - interval '1 year'
select interval '1 month' + '2024-01-31 12:00+02'::timestamptz, '2024-01-31 12:00'::timestamp + '1 month'::interval, (interval '1 day') + '2024-01-31'::date, '2024-01-31'::date - ('1 day'::interval), '2024-01-31 12:00'::timestamptz + '1 day 01:00', '1 week' + '2024-01-31 12:00'::timestamp, '2024-01-31 12:00'::timestamptz - cast('1 hour' as interval), pg_typeof(interval '1 day' + now()), pg_typeof(now() + '1 day')
select now() + 'soon'
select localtimestamp + 1
select interval '1 day' + 1
select to_timestamp(0), to_timestamp(1704103200.123456), to_timestamp(-62135596800), to_timestamp(1e11), to_timestamp(-1e11), to_timestamp(1.0000005), to_timestamp(null), to_timestamp('1.5'), pg_typeof(to_timestamp(1))
select to_timestamp('NaN')
select to_timestamp(1e300)
select to_timestamp(true)
select extract(hour from '2024-01-01 12:34:56.789+02'::timestamptz), extract(epoch from '2024-01-01 12:34:56.789+02'::timestamptz), date_part('minute', '2024-01-01 12:34:56.789+02'::timestamptz), date_part('epoch', '1970-01-01 00:00:00.25+00'::timestamptz), extract(timezone from now()), extract(timezone_hour from now()), extract(timezone_minute from now()), extract(doy from '2024-01-01 01:00+02'::timestamptz), extract(isoyear from '2024-12-30'::timestamptz)
select extract(timezone from localtimestamp)
select extract(timezone from current_date)
select extract(fortnight from now())
select date_trunc('fortnight', now())
select date_trunc('day', '2024-05-15 01:34:56.789+02'::timestamptz), date_trunc('hour', '2024-05-15 01:34:56.789+02'::timestamptz, 'UTC'), date_trunc('quarter', '2024-05-15 01:34'::timestamp), date_trunc('month', '2024-05-15'::date), pg_typeof(date_trunc('month', '2024-05-15'::date)), pg_typeof(date_trunc('month', localtimestamp)), pg_typeof(date_trunc('month', now()))
select date_trunc('century', '2024-05-15'::timestamptz), date_trunc('millennium', '2024-05-15'::timestamp), date_trunc('century', '0044-03-15 BC'::timestamptz), date_trunc('millisecond', '2024-05-15 01:02:03.456789'::timestamptz)
select '2024-01-01 12:00+02'::timestamptz at time zone 'UTC', '2024-01-01 12:00'::timestamp at time zone 'utc', '2024-01-01'::date at time zone 'Etc/UTC', '2024-01-01 12:00+02' at time zone 'GMT', timezone('UTC', '2024-01-01 12:00+02'::timestamptz)
select pg_typeof(now() at time zone 'UTC'), pg_typeof(localtimestamp at time zone 'UTC'), pg_typeof(current_date at time zone 'UTC'), now() at time zone 'UTC' at time zone 'UTC' = now(), now() at time zone null
-- Columns, defaults, keys and indexes.
create table moments (id int primary key, z timestamptz, t timestamp with time zone default now(), w timestamp without time zone default now(), d date default now(), unique (z))
insert into moments (id, z) values (1, '2024-01-01 12:00+02'), (2, '2024-01-01 12:00'), (3, '0044-03-15 12:00 BC'), (4, null), (5, '2024-01-01 00:00+00'::timestamp), (6, '2025-01-01'::date)
insert into moments (id, z) values (7, '2024-01-01 13:00+03')
select t = w, d = t::date, t > '2024-01-01' from moments where id = 1
select id, z from moments order by z, id
select id, z from moments order by z desc nulls last
select id from moments where z = '2024-01-01 11:00+01'
select id from moments where z = '2024-01-01 10:00'::timestamp
select id from moments where z = '2025-01-01'::date
select id from moments where z > '2024-01-01'::date and z < '2024-01-01 12:00:00.000001' order by id
select id from moments where z in ('2024-01-01 10:00Z', '2025-01-01 00:00Z') order by id
select min(z), max(z), count(distinct z), count(*) from moments
select date_trunc('year', z) as y, count(*) from moments group by y order by y
select array_agg(z order by z), array_agg(w order by z) filter (where id = 100), pg_typeof(array_agg(z)) from moments where id < 4
select a.id, b.id from moments a join moments b on a.z = b.z + interval '2 hours' order by 1
update moments set z = z at time zone 'UTC' + interval '1 hour', w = z, d = z where id = 1
select z, w, d from moments where id = 1
create table moments_of (z timestamptz primary key, t timestamp unique)
insert into moments_of select z, z from moments where z is not null
insert into moments_of values ('2024-01-01 14:00+03', null)
select z, t from moments_of where z >= '2024-01-01' order by z
select a.z, b.id from moments_of a join moments b on a.t = b.z order by 1
select z from moments_of where t = '2024-01-01 12:00+00'::timestamptz
-- Arrays and parameters.
select array['2024-01-01 12:00+02'::timestamptz, null], '{2024-01-01,"2024-01-01 12:00+02"}'::timestamptz[], '{2024-01-01 12:00+02}'::timestamptz[]::timestamp[], '{2024-01-01}'::date[]::timestamptz[], pg_typeof(array[now(), '2024-01-01'::date])
select '2024-01-01 10:00'::timestamp = any('{2024-01-01 12:00+02}'::timestamptz[]), '2024-01-01 10:00Z'::timestamptz = any('{2024-01-01 12:00+02}'), '2024-01-01'::date = any(array['2024-01-01 02:00+02'::timestamptz])
--$ timestamptz 2024-01-01 12:00:00+02
select $1::text, pg_typeof($1)::text, ($1 + interval '1 day')::text, ($1 at time zone 'UTC')::text, ($1::timestamp)::text, ($1::date)::text, ($1 = '2024-01-01 10:00'::timestamp)::text
--$ timestamp 2024-01-01 12:00:00+02
select $1::text, ($1::timestamptz)::text, (now() > $1)::text
--$ timestamptz 2024-01-01 12:00:00
select id::text from moments where z = $1
--$ timestamptz[] {2024-01-01 12:00:00+00,NULL}
select id::text from moments where z = any($1)
--$ timestamptz[] {2024-01-01 12:00:00+02}
select $1::text, ($1::timestamp[])::text, pg_typeof($1)::text
-- The catalog.
select column_name::text, data_type::text, udt_name::text, column_default::text from information_schema.columns where table_name = 'moments' order by ordinal_position
select attname, atttypid, atttypmod, attlen::int, format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'moments'::regclass and attnum > 0 order by attnum
select typname, oid, typlen::int, typtype, typcategory, typelem, typarray from pg_type where oid in (1082, 1114, 1184, 1115, 1185, 23, 1007, 1009, 25) order by oid
select a.typname from pg_type a join pg_type b on a.oid = b.typarray where b.typname = 'timestamptz'
select format_type(1184, -1), format_type(1185, -1), format_type(1007, -1)
set timezone = 'UTC'
set time zone 'Etc/UTC'
