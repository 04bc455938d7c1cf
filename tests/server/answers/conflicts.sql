-- INSERT ... ON CONFLICT with a second unique key.
create table oc (id int primary key, u int unique, note text)
insert into oc values (1, 10, 'a')
insert into oc values (1, 20, 'b'), (2, 20, 'c') on conflict (id) do update set u = excluded.u
select id, u, note from oc order by id
-- A key that DO UPDATE freed, in the same statement and in the next one.
insert into oc values (1, 30, 'd'), (3, 10, 'e') on conflict (id) do update set u = excluded.u, note = excluded.note
select id, u, note from oc order by id
insert into oc values (1, 10, 'f') on conflict (id) do update set u = excluded.u
insert into oc values (3, 40, 'g'), (4, 10, 'h') on conflict (id) do update set u = excluded.u
select id, u, note from oc order by id
-- A row that conflicts with the target and with another key takes the target's path.
insert into oc values (1, 10, 'i') on conflict (u) do nothing
insert into oc values (1, 10, 'j') on conflict (id) do nothing
insert into oc values (1, 10, 'k') on conflict do nothing
insert into oc values (1, 40, 'l') on conflict (u) do update set note = excluded.note
insert into oc values (1, 40, 'm') on conflict (id) do update set note = excluded.note
select id, u, note from oc order by id
-- A row that conflicts with another key alone is an error, and its statement has no effect.
insert into oc values (1, 77, 'n') on conflict (u) do nothing
insert into oc values (7, 10, 'o') on conflict (id) do nothing
insert into oc values (7, 10, 'p') on conflict (id) do update set note = excluded.note
insert into oc values (8, 80, 'q'), (9, 10, 'r') on conflict (id) do nothing
insert into oc values (8, 80, 's'), (1, 70, 't') on conflict (u) do update set note = excluded.note
select id, u, note from oc order by id
-- DO UPDATE onto the key of another row, and onto one that the statement itself has freed.
insert into oc values (1, 40, 'u') on conflict (id) do update set u = excluded.u
insert into oc values (1, 10, 'v') on conflict (id) do update set u = 40
insert into oc values (3, 90, 'w'), (1, 40, 'x') on conflict (id) do update set u = excluded.u, note = excluded.note
select id, u, note from oc order by id
-- The same row twice.
insert into oc values (5, 50, 'y'), (5, 51, 'z') on conflict (id) do update set u = excluded.u
insert into oc values (5, 50, 'y'), (5, 51, 'z') on conflict (id) do nothing
insert into oc values (1, 60, 'y'), (1, 61, 'z') on conflict (id) do update set u = excluded.u
insert into oc values (6, 60, 'y'), (16, 60, 'z') on conflict (u) do nothing
insert into oc values (26, 61, 'y'), (27, 61, 'z') on conflict (id) do nothing
select id, u, note from oc order by id
-- DO UPDATE that moves the primary key; conditions; RETURNING.
insert into oc values (1, 99, 'a') on conflict (id) do update set id = 100
insert into oc values (1, 99, 'b'), (100, 98, 'c') on conflict (id) do update set note = excluded.note returning id, u, note
insert into oc values (100, 40, 'd') on conflict (u) do update set id = 101, note = oc.note || excluded.note returning id, u, note
insert into oc values (2, 0, 'e') on conflict (id) do update set u = excluded.u where oc.u > 1000 returning id
insert into oc values (2, 0, 'f') on conflict (id) do update set u = excluded.u where oc.u < 1000 returning id, u
select id, u, note from oc order by id
-- NULL is no conflict; a key of two columns; CHAR's blanks.
insert into oc values (200, null, 'a'), (201, null, 'b') on conflict (u) do nothing
insert into oc values (200, null, 'c') on conflict (u) do nothing
create table op (a int, b char(3), c int unique, primary key (a, b))
insert into op values (1, 'x', 1), (1, 'y', 2)
insert into op values (1, 'x  ', 3), (1, 'z', 1) on conflict (a, b) do update set c = excluded.c
insert into op values (1, 'z', 4), (1, 'y', 3) on conflict (c) do update set c = 5
insert into op values (1, 'z ', 5) on conflict (b, a) do update set b = 'w', c = op.c + excluded.c
insert into op values (9, 'q', 9) on conflict (a) do nothing
select a, b, c from op order by a, b
-- Rows of a query, in a transaction.
begin
insert into oc select a + 300, c, b from op on conflict (u) do update set note = 'again'
insert into oc select id, u + 1000, note from oc where id > 300 on conflict (id) do update set u = excluded.u
select id, u, note from oc where id > 300 order by id
rollback
select count(*) from oc where id > 300
