"""The same DML makes byte-identical events through PgQ's row triggers and through ours.

Each script runs on Debian's PgQ and on our schema, statement by statement; after
each, the events it made are compared, field by field, and whether it failed.
Messages and SQLSTATEs are ours and differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
import pytest

from pgqpy.embedded import Server

pytestmark = pytest.mark.reference

QUEUE = "q"

# t(table, arguments...) puts one trigger of each kind on a table; one(kind, table, ...) only that one.
HELPERS = """
create function t(target text, arguments text default '', timing text default 'after',
                  kinds text[] default '{jsontriga,logutriga,sqltriga}') returns void language plpgsql as $$
declare
    kind text;
    old text;
begin
    for old in select tgname from pg_trigger where tgrelid = target::regclass and not tgisinternal loop
        execute format('drop trigger %I on %s', old, target);
    end loop;
    foreach kind in array kinds loop
        execute format('create trigger %s %s insert or update or delete on %s for each row '
                       'execute function pgq.%1$s(''q''%4$s)', kind, timing, target, arguments);
    end loop;
end
$$;
create function one(kind text, target text, arguments text default '', timing text default 'after')
returns void language sql as $$ select t(target, arguments, timing, array[kind]) $$;
create function truncated(kind text, target text, arguments text default '', timing text default 'after')
returns void language plpgsql as $$
begin
    execute format('create or replace trigger r %s truncate on %s for each statement '
                   'execute function pgq.%s(''q''%s)', timing, target, kind, arguments);
end
$$;
"""

SCRIPTS = {
    "every_builtin_type": r"""
create table a (id int primary key, t text, n numeric, b bool, f8 float8, ts timestamp, tz timestamptz, d date,
    j json, jb jsonb, i2 int2, i8 int8, o oid, f4 float4, m money, iv interval, by bytea, ar int[], ta text[],
    u uuid, bt bit(3), vb varbit, c char(5), vc varchar, nm name, ch "char", ip inet, rng int4range, tm time,
    ttz timetz, pt point, mr nummultirange, r regclass, rp regproc, x xid, x8 xid8, ci cid, tid tid, l pg_lsn,
    tv tsvector, tq tsquery, mac macaddr, cidr cidr, iv2 int2vector, ov oidvector, jp jsonpath);
select t('a');
insert into a (id) values (1);
insert into a values (2, 'he''ll\o', 1.50, true, 1.5, '2020-01-02 03:04:05.678', '2020-01-02 03:04:05.678+02',
    '2020-01-02', ' {"a" : 1}', '{"a" : 1}', 3, 4, 5, 1.1, 12.5, '1 day 02:03', '\xdeadbeef', '{1,2,null}',
    '{a,"b c",NULL,"NULL"}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '101', '11', 'ab', 'vc', 'nm', 'c',
    '1.2.3.4/24', '[1,3)', '01:02:03', '01:02:03+02', '(1,2)', '{[1.0,2),[3,4]}', 'pg_class', 'now', '5', '6',
    '7', '(1,2)', '0/1', 'a b', 'a & b', '08:00:2b:01:02:03', '10.0.0.0/8', '1 2 3', '1 2', '$.a');
insert into a (id, n, f8, f4, ts, tz, d) values (3, 'NaN', 'NaN', 'NaN', 'infinity', 'infinity', 'infinity');
insert into a (id, n, f8, f4, ts, tz, d) values (4, 'infinity', 'infinity', '-infinity', '-infinity', '-infinity', '-infinity');
insert into a (id, n, f8, f4, ts, tz, d)
    values (5, 1e30, 1e300, 1e-30, '0044-03-15 01:02:03 BC', '0044-03-15 01:02:03 BC', '0044-03-15 BC');
insert into a (id, n, f8, f4, ts, tz, d)
    values (6, 0.000001, 0.1, 0.1, '12345-03-15 01:02:03.1', '12345-03-15 01:02:03.000001', '12345-03-15');
insert into a (id, t) values (7, E'a\tb\nc\rd\be\ff\x01\x1f\x7f"q"\\/ é €𝄞 \u2028 & = + % ~ - _ . * ( ) , ; : @ ! # $ '' ` [ ] { } | ^ < > ?');
insert into a (id, t) values (8, ''), (9, ' '), (10, 'NULL'), (11, '""'), (12, '(,)'), (13, '\'), (14, ',');
insert into a (id, t) values (15, repeat('日本語のテキスト、いろはにほへと。', 50)), (16, repeat('x"\é ', 30000));
update a set t = 'x' where id = 1;
update a set t = 'x' where id = 1;
update a set t = null where id = 1;
update a set n = 1.50, f8 = 2, b = false where id = 1;
update a set id = 1 where id = 1;
update a set id = 100 where id = 1;
delete from a""",
    "user_types": r"""
create domain dint as int;
create domain dbool as bool;
create domain dts as timestamptz;
create domain positive as int check (value > 0);
create domain required as int not null default 5;
create domain nested as positive;
create type mood as enum ('a', 'B b');
create type pair as (a int, b text, c timestamp);
create type floats as range (subtype = float8);
create table u (id dint primary key, b dbool, ts dts, e mood, c pair, ca pair[], nn required, ne nested, dd dint[],
    g int generated always as (id::int * 2) stored, idn int generated always as identity, r floats);
select t('u');
insert into u values (1, true, '2020-01-01', 'B b', row(1, 'a "b" \ ,', date '2020-01-01'), array[row(1, 'x', null)::pair],
    3, 7, '{1,2}', default, default, '[0,1.5)');
update u set nn = 4, c = row(2, null, null);
update u set b = null, e = null, c = null;
alter table u add column t text;
update u set t = 'new column';
alter table u rename column t to s;
update u set s = null;
alter table u alter column nn type int;
update u set nn = null;
delete from u""",
    "odd_names": r"""
create table "We ird.T""b" ("I d" int, "sel=ect" text, "a,b" int, "É" text, "order" int, "Up" text, "c&d" text,
    "%s" text, "a%1$sb" text, "q'uote" text, "back\slash" text, "$1" text, "a.b" text, primary key ("I d", "a,b"));
select t('"We ird.T""b"');
insert into "We ird.T""b" values (1, 'x', 2, 'é', 5, 'u', 'cd', '%', '%s', '%L', '\', '$1', '.');
update "We ird.T""b" set "order" = 6, "Up" = null, "c&d" = 'y', "q'uote" = 'it''s', "back\slash" = E'\n';
delete from "We ird.T""b";
create schema "S p";
create table "S p"."order" (id int primary key, "user" text, "end" int, name text, value int, "type" text, "left" int,
    "timestamp" timestamp, "interval" interval, "between" int);
select t('"S p"."order"');
insert into "S p"."order" values (1);
update "S p"."order" set "user" = 'a', "end" = 1, name = 'x', value = 1, "left" = 5, "interval" = '1 mon', "between" = 3;
set quote_all_identifiers = on;
insert into "S p"."order" values (2);
update "S p"."order" set name = 'y';
delete from "S p"."order";
reset quote_all_identifiers;
drop schema "S p" cascade;
create table "A" (id int, k2 int, v text, primary key (k2, id));
select t('"A"');
insert into "A" values (1, 2, 'x');
update "A" set v = 'y';
update "A" set v = 'y';
delete from "A" """,
    "what_counts_as_changed": r"""
create type comp as (a numeric);
create domain dn as numeric;
create type frng as range (subtype = float8);
create table c (id int primary key, n numeric, dn dn, f float8, f4 float4, iv interval, ar numeric[], ia int[], cr comp,
    bx box, ci circle, pth path, pol polygon, ln line, ls lseg, nr numrange, mr nummultirange, frr frng, ttz timetz,
    j json, jb jsonb, ac aclitem, tq tsquery, bp bpchar, c5 char(5), pt point, dar dn[], ov oidvector);
select one('sqltriga', 'c');
insert into c (id) values (1);
update c set n = 1.5, dn = 1.5, f = 0, f4 = 0, iv = '1 mon', ar = '{1.0}', ia = '{1}', cr = row(1.0), bx = '((0,0),(1,1))',
    ci = '<(0,0),1>', pth = '[(0,0),(1,1)]', pol = '((0,0),(1,1))', ln = '{1,2,3}', ls = '[(0,0),(1,1)]', nr = '[1.0,2)',
    mr = '{[1.0,2)}', frr = '[0,1)', ttz = '01:00:00+01', j = '{"a":1}', jb = '1.0', tq = 'a & b', bp = 'a', c5 = 'a',
    pt = '(1,1)', dar = '{1.0}', ov = '1 2';
update c set n = 1.50;
update c set dn = 1.50;
update c set f = '-0', f4 = '-0';
update c set iv = '30 days';
update c set ar = '{1.00}';
update c set ia = '{1}';
update c set ia = '{2}';
update c set cr = row(1.00);
update c set bx = '((0,0),(2,0.5))';
update c set ci = '<(1,1),1>';
update c set pth = '[(0,0),(2,2)]';
update c set pol = '((1,1),(0,0))';
update c set ln = '{2,4,6}';
update c set ls = '[(1,1),(0,0)]';
update c set nr = '[1.00,2)';
update c set mr = '{[1.00,2)}';
update c set frr = '[-0,1)';
update c set ttz = '02:00:00+02';
update c set j = '{"a":1}';
update c set j = '{"a": 1}';
update c set jb = '1.00';
update c set tq = 'b & a';
update c set bp = 'a  ';
update c set c5 = 'a ';
update c set pt = '(1,1)';
update c set pt = '(1,2)';
update c set dar = '{1.00}';
update c set ov = '1 3';
update c set f = 'NaN';
update c set f = 'NaN';
update c set n = null, j = null;
update c set n = null, j = null;
set extra_float_digits = 0;
update c set f = 0.3;
update c set f = 0.1::float8 + 0.2::float8;
create table keys (id numeric primary key, t text);
select t('keys');
insert into keys values (1.0, 'x');
update keys set id = 1.00, t = 'b';
update keys set id = 1.000;
update keys set id = 2;
create table jsonkey (id json, t text);
select one('sqltriga', 'jsonkey', $$, 'pkey=id'$$);
insert into jsonkey values ('{"a":1}', 'x');
update jsonkey set t = 'y';
update jsonkey set id = '{"a": 1}'""",
    "output_settings": r"""
create table s (id int primary key, d date, ts timestamp, tz timestamptz, iv interval, b bytea, da date[], t time,
    ttz timetz, tr tstzrange, f float8, f4 float4);
select t('s');
set datestyle = 'German, DMY';
set intervalstyle = 'iso_8601';
set bytea_output = 'escape';
set extra_float_digits = -5;
set timezone = 'Europe/Berlin';
insert into s values (1, '2020-02-01', '2020-02-01 10:11:12', '2020-07-01 10:11:12.5', '1 year 2 mon 3 days 04:05:06',
    '\xdead00ff41', '{01.01.2020,null}', '10:11:12', '10:11:12+03', '[01.01.2020,01.02.2020)', 0.1234567890123, 0.1);
insert into s (id, d, ts, tz) values (2, '15.03.0044 BC', '15.03.0044 01:02:03 BC', '15.03.0044 01:02:03 BC');
insert into s (id, tz) values (3, '15.03.1850 01:02:03'), (4, 'infinity'), (5, '-infinity');
insert into s (id, tz) values (6, '25.10.2020 02:30:00 CEST'), (7, '25.10.2020 02:30:00 CET');
update s set d = '01.01.2021';
set datestyle = 'SQL, MDY';
update s set d = '01/02/2021';
set datestyle = 'Postgres';
update s set d = '01/03/2021';
set datestyle = 'ISO';
set timezone = 'Asia/Kolkata';
update s set d = '2021-01-04';
set timezone = 'America/St_Johns';
update s set d = '2021-01-05';
set timezone = 'Africa/Monrovia';
update s set tz = '1950-01-01 12:00';
set intervalstyle = 'postgres_verbose';
set bytea_output = 'hex';
set extra_float_digits = 3;
update s set f = 0.1, f4 = 0.1;
set standard_conforming_strings = off;
set client_encoding = latin1;
update s set b = 'ab\\\\c';
delete from s""",
    "without_a_key": r"""
create table n (id int, t text);
select t('n');
insert into n values (1, 'x');
update n set t = 'y';
delete from n;
alter table n add primary key (id);
update n set t = 'z';
alter table n drop constraint n_pkey;
update n set t = 'z';
insert into n values (2, 'x');
create view v as select * from n;
create trigger v instead of insert or update or delete on v for each row execute function pgq.jsontriga('q');
insert into v values (5, 'v');
update v set t = 'x';
create trigger w instead of insert or update or delete on v for each row execute function pgq.logutriga('q', 'pkey=id', 'SKIP');
insert into v values (6, 'v');
drop trigger v on v;
update v set t = 'x';
delete from v;
create table empty ();
select t('empty');
insert into empty default values""",
    "pkey_argument": r"""
create table n (id int, t text, z text);
select t('n', $$, 'pkey=t,id'$$);
insert into n values (2, 'x');
insert into n values (null, 'x');
update n set id = 2 where id = 2;
update n set z = '1' where id = 2;
update n set t = 'y' where id = 2;
update n set id = 3 where id = 2;
delete from n where id = 2;
select one('sqltriga', 'n', $$, 'pkey=t,id'$$);
update n set t = 'x';
update n set z = 'x';
delete from n;
select one('logutriga', 'n', $$, 'pkey=t,id'$$);
update n set t = 'x';
delete from n;
select t('n', $$, 'pkey=t , id'$$);
insert into n values (2, 'x');
update n set t = 'y';
update n set id = 4;
update n set z = 'y';
select t('n', $$, 'pkey=zz'$$);
insert into n values (2, 'x');
update n set id = 2;
select one('jsontriga', 'n', $$, 'pkey=zz'$$);
update n set id = 3;
select one('sqltriga', 'n', $$, 'pkey=zz'$$);
update n set id = 4;
update n set id = 4;
delete from n where id = 2;
select t('n', $$, 'pkey=zz,id'$$);
update n set z = 'new';
update n set z = 'new';
delete from n;
select t('n', $$, 'pkey='$$);
insert into n values (2, 'x');
update n set id = 2;
select t('n', $$, 'pkey=id', 'pkey=t'$$);
insert into n values (2, 'x');
create table inc (id int, b text, c text, primary key (id) include (b));
select t('inc');
insert into inc values (1, 'b', 'c');
update inc set c = 'x';
update inc set b = 'x';
delete from inc""",
    "ignore_argument": r"""
create table n (id int primary key, t text, r text);
select t('n', $$, 'ignore=t'$$);
insert into n values (2, 'x');
update n set t = 'z';
update n set t = 'z';
update n set id = 2;
update n set r = 'r', t = 'u';
update n set t = 'x', id = 3;
delete from n;
select t('n', $$, 'ignore=id'$$);
insert into n values (2, 'x');
update n set t = 'z';
update n set t = 'z';
update n set id = 3;
delete from n;
select t('n', $$, 'ignore=id,t,r'$$);
insert into n values (2, 'x');
update n set t = 'y';
select t('n', $$, 'ignore=zz, r ,'$$);
update n set r = '1';
update n set t = '1';
select t('n', $$, 'ignore='$$);
update n set t = '2';
select t('n', $$, 'ignore="t"'$$);
update n set t = '3';
select t('n', $$, 'ignore=T'$$);
update n set t = '4';
select t('n', $$, 'ignore=t', 'ignore=r'$$);
update n set t = '5';
update n set r = '5'""",
    "skip_backup_deny": r"""
create table n (id int primary key, t text, n numeric);
select t('n', $$, 'SKIP'$$);
insert into n values (1, 'x');
select one('logutriga', 'n', '', 'before');
insert into n values (1, 'x');
select one('logutriga', 'n', $$, 'SKIP'$$, 'before');
insert into n values (2, 'x');
update n set t = 'not written';
delete from n;
select one('jsontriga', 'n', $$, 'SKIP', 'ignore=t'$$, 'before');
update n set t = 'not written';
select one('jsontriga', 'n', $$, 'SKIP', 'when=id=2'$$, 'before');
update n set t = 'not written';
select one('jsontriga', 'n');
update n set n = 1;
select t('n', $$, 'backup', 'ignore=n'$$);
insert into n values (3, 'a b', 1.50);
update n set t = 'c d', n = 2;
update n set t = null;
delete from n where id = 3;
select t('n', $$, 'deny'$$);
insert into n values (4);
update n set t = 'denied';
delete from n;
select t('n', $$, 'deny', 'when=false', 'ignore=t'$$);
insert into n values (4);
update n set t = 'denied';
set session_replication_role = local;
insert into n values (5, 'silent');
select one('jsontriga', 'n', $$, 'SKIP'$$, 'before');
insert into n values (6, 'silent');
select one('jsontriga', 'n', $$, 'no such argument'$$, 'before');
insert into n values (7, 'silent');
select truncated('jsontriga', 'n');
set session_replication_role = replica;
update n set t = 'not fired';
alter table n enable always trigger jsontriga;
reset session_replication_role;
select one('jsontriga', 'n');
delete from n""",
    "wrong_arguments": r"""
create table n (id int primary key, t text);
select t('n', $$, 'bogus'$$);
insert into n values (1);
select t('n', $$, ''$$);
insert into n values (1);
select t('n', $$, 'skip'$$);
insert into n values (1);
select t('n', $$, 'PKEY=id'$$);
insert into n values (1);
select t('n', $$, 'ev_extra5=id'$$);
insert into n values (1);
select t('n', $$, 'deny=1'$$);
insert into n values (1);
select t('n', $$, ' deny'$$);
insert into n values (1);
select t('n');
create trigger a after insert on n for each row execute function pgq.logutriga();
insert into n values (1);
select t('n');
create trigger a after insert on n for each row execute function pgq.logutriga('no such queue');
insert into n values (1);
select t('n');
create trigger a after insert on n for each statement execute function pgq.logutriga('q');
insert into n values (1);
select pgq.jsontriga()""",
    "truncate": r"""
create table n (id int primary key, t text);
create table k (id int);
select truncated('jsontriga', 'n');
truncate n;
select truncated('logutriga', 'n');
truncate n;
select truncated('sqltriga', 'n', '', 'before');
truncate n;
select truncated('jsontriga', 'k');
truncate k, n;
select truncated('jsontriga', 'n', $$, 'SKIP'$$, 'before');
truncate n;
select truncated('jsontriga', 'n', $$, 'SKIP'$$);
truncate n;
select truncated('jsontriga', 'n', $$, 'pkey=id'$$);
truncate n;
select truncated('jsontriga', 'n', $$, 'ignore=id'$$);
truncate n;
select truncated('jsontriga', 'n', $$, 'backup'$$);
truncate n;
select truncated('jsontriga', 'n', $$, 'when=true'$$);
truncate n;
select truncated('logutriga', 'n', $$, 'ev_extra3=1'$$);
truncate n;
select truncated('jsontriga', 'n', $$, 'deny'$$);
truncate n;
set session_replication_role = local;
truncate n""",
    "magic_columns": r"""
create table m (id int primary key, t text, _pgq_ev_type text, _pgq_ev_data text, _pgq_ev_extra1 text, _pgq_ev_extra2 int,
    _pgq_ev_extra3 timestamp, _pgq_ev_extra4 numeric);
select t('m');
insert into m values (1, 'x', 'ty', 'da', 'e1', 2, '2020-01-01', 4.0);
insert into m values (2, 'x'), (3, 'x', 'T');
update m set t = 'z', _pgq_ev_data = 'da2' where id = 1;
update m set _pgq_ev_data = 'da3' where id = 1;
update m set id = 1 where id = 1;
delete from m where id = 1;
select t('m', $$, 'ev_type=''O''', 'ignore=t', 'backup'$$);
insert into m values (4, 'x', 'ty', 'da', 'e1', 2, '2020-01-01', 4.0);
update m set t = 'y' where id = 4;
update m set _pgq_ev_type = 'q' where id = 4;
select t('m', $$, 'ignore=zz'$$);
update m set _pgq_ev_type = 'r' where id = 4;
create table one_of_them (id int primary key, t text, _pgq_ev_extra3 text);
select t('one_of_them', $$, 'backup'$$);
insert into one_of_them values (1, 'x', 'y');
update one_of_them set t = 'z';
delete from one_of_them;
create table unknown (id int primary key, _pgq_ev_extra5 text);
select t('unknown');
insert into unknown values (1, 'x');
create table ordinary (id int primary key, _pgqx text, "_PGQ_EV_TYPE" text, _pgq text, _pgq_bogus text);
select t('ordinary');
insert into ordinary values (1, 'x', 'y', 'z');
create table magic_key (id int, _pgq_ev_type int, primary key (_pgq_ev_type));
select t('magic_key');
insert into magic_key values (1, 2);
update magic_key set id = 3;
delete from magic_key""",
    "expressions": r"""
create table e (id int primary key, t text, ts timestamp, n numeric, "Up" text, j jsonb, op text);
select one('jsontriga', 'e', $$, 'when=id>5'$$);
insert into e (id) values (1), (6);
select one('jsontriga', 'e', $$, 'ev_type=t', 'ev_data=j', 'ev_extra1=ts', 'ev_extra2=n', 'ev_extra3=id + id * 2',
    'ev_extra4=array[id,id]'$$);
insert into e (id, t, ts, n, j) values (7, 'x', '2020-01-02 03:04', 2.50, '{"a":5}'), (8, null, null, null, null);
update e set t = 'new' where id = 7;
delete from e where id = 7;
select one('jsontriga', 'e', $$, 'ev_type=null', 'ev_data=', 'ev_extra1=   '$$);
insert into e (id) values (10);
select one('jsontriga', 'e', $$, 'when=t'$$);
insert into e (id, t) values (11, 'true');
select one('jsontriga', 'e', $$, 'when=null::bool'$$);
insert into e (id, t) values (11, 'true');
select one('jsontriga', 'e', $$, 'when='$$);
insert into e (id, t) values (11, 'true');
select one('jsontriga', 'e', $$, 'when=true where false'$$);
insert into e (id, t) values (11, 'true');
select one('jsontriga', 'e', $$, 'when=x from unnest(array[true, true]) x'$$);
insert into e (id, t) values (11, 'true');
select one('jsontriga', 'e', $$, 'when=id=1', 'when=n=1'$$);
insert into e (id, n) values (12, 1);
select one('jsontriga', 'e', $$, 'ev_type=1', 'ev_type=2', 'ev_type=null'$$);
insert into e (id) values (13);
select one('jsontriga', 'e', $$, 'ev_type=new.id'$$);
insert into e (id) values (14);
select one('jsontriga', 'e', $$, 'ev_type=e.id'$$);
insert into e (id) values (14);
select one('jsontriga', 'e', $$, 'ev_type=ID'$$);
insert into e (id) values (14);
select one('jsontriga', 'e', $$, 'ev_type=nosuch'$$);
insert into e (id) values (14);
select one('jsontriga', 'e', $$, 'ev_type=$1'$$);
insert into e (id) values (14);
select one('jsontriga', 'e', $$, 'ev_type=tg_op'$$);
insert into e (id) values (14);
select one('jsontriga', 'e', $$, 'ev_type=id id'$$);
insert into e (id) values (14);
select one('jsontriga', 'e', $$, 'ev_type=1/0'$$);
insert into e (id) values (14);
select one('jsontriga', 'e', $$, 'ev_type=Up', 'ev_data=op'$$);
insert into e (id, "Up", op) values (15, 'up', 'op');
select one('jsontriga', 'e', $$, 'ev_type=''it''''s id '' || ''id''', 'ev_data=E''\'' id'' || ''c\'''$$);
insert into e (id) values (16);
select one('jsontriga', 'e', $q$, 'ev_type=$$id$$ || $a$ id $a$', 'ev_data=/* id /* id */ id */ 1 -- id'$q$);
insert into e (id) values (17);
select one('jsontriga', 'e', $q$, 'ev_type=$$unterminated id'$q$);
insert into e (id) values (18);
select one('jsontriga', 'e', $$, 'ev_type=''unterminated id'$$);
insert into e (id) values (18);
select one('jsontriga', 'e', $$, 'ev_type=id, t', 'ev_data=id as x', 'ev_extra1=1 union select 1'$$);
insert into e (id) values (18);
select one('jsontriga', 'e', $$, 'ev_type=id::text||1::text||t::varchar(3)', 'ev_data=true', 'ev_extra2=cast(id as text)'$$);
insert into e (id, t) values (19, 'abcde');
select one('jsontriga', 'e', $$, 'ev_type=(select count(*) from e x where x.id = id)', 'ev_data=(select count(*) from e)'$$);
insert into e (id) values (20), (21);
select one('jsontriga', 'e', $$, 'ev_data=(select count(*) from e)'$$, 'before');
insert into e (id) values (22), (23);
select one('jsontriga', 'e', $$, 'when=id in (24, 25) and n between 2 and 3 or t like ''%id'''$$);
insert into e (id, n, t) values (24, 2, null), (25, 1, 'id'), (26, 2, '');
select one('sqltriga', 'e', $$, 'ev_data=id', 'ev_type=n', 'ev_extra2=t', 'backup'$$);
insert into e (id, n, t) values (30, 1.50, 'x');
update e set t = 'y' where id = 30;
delete from e where id = 30;
select one('sqltriga', 'e', $$, 'pkey=op', 'when=false'$$);
delete from e where id = 20;
alter table e rename column t to u;
select one('logutriga', 'e', $$, 'ev_type=u'$$);
insert into e (id, u) values (31, 'x');
alter table e rename column u to w;
insert into e (id, w) values (32, 'x')""",
    "altered_tables": r"""
create table a (x int, id int primary key, b text);
alter table a drop column x;
alter table a add c numeric default 7;
select t('a');
insert into a values (1, 'b');
alter table a add d int;
update a set d = 3;
alter table a rename b to bb;
update a set d = 4, bb = null;
alter table a alter d type text;
update a set d = '5';
alter table a alter d type varchar;
update a set d = null;
alter table a drop constraint a_pkey;
update a set d = '6';
alter table a add primary key (c);
update a set d = '7';
update a set id = 8;
alter table a rename to a2;
update a2 set d = '8';
alter table a2 drop column d;
update a2 set id = 9;
alter table a2 add d int;
update a2 set d = 9;
begin;
alter table a2 add e bool default true;
update a2 set d = 10;
rollback;
update a2 set d = 11;
create schema other;
alter table a2 set schema other;
update other.a2 set d = 12;
drop schema other cascade;
create table o (id int primary key, a int, b text);
select t('o');
insert into o values (1, 2);
alter table o alter a type oid;
update o set b = 'bare no longer';
update o set a = null""",
    "generated_columns": r"""
create table g (id int primary key, b int, g int generated always as (b * 2) stored,
    h text generated always as ('x' || b) stored, t text, i int generated by default as identity,
    d timestamp default '2020-01-01');
select t('g', '', 'before');
insert into g (id, b) values (1, 2);
update g set b = 3;
update g set t = 'x';
delete from g;
select t('g');
insert into g (id, b) values (1, 2);
update g set b = 3;
alter table g alter g drop expression;
select t('g', '', 'before');
update g set g = 9""",
    "partitions_and_inheritance": r"""
create table p (k int, id int, v text, primary key (id, k)) partition by range (k);
create table p1 (v text, extra text, id int not null, k int not null);
alter table p1 drop column extra;
alter table p attach partition p1 for values from (0) to (10);
create table p2 partition of p for values from (10) to (20);
select t('p');
insert into p values (1, 1, 'x'), (11, 2, 'y');
update p set v = 'z';
update p set k = 12 where k = 1;
delete from p;
create table h (id int primary key, v text);
create table h1 (x int) inherits (h);
select t('h');
select t('h1', $$, 'pkey=id'$$);
insert into h1 values (1, 'a', 2);
insert into h values (2, 'b');
update h set v = 'c';
delete from h""",
    "statements_of_all_kinds": r"""
create table c (id int primary key, t text, n int default 0);
select t('c');
insert into c values (1, 'a') on conflict (id) do update set n = c.n + 1;
insert into c values (1, 'a'), (2, 'b') on conflict (id) do update set n = c.n + 1;
insert into c values (1, 'a') on conflict do nothing;
merge into c using (values (1, 'm'), (9, 'n')) s (id, t) on c.id = s.id
    when matched then update set t = s.t when not matched then insert values (s.id, s.t);
with d as (delete from c returning *) insert into c select id + 100, t, n from d;
create table s (id int primary key, ref int references s on delete cascade, t text);
select t('s');
insert into s values (1, null, 'a'), (2, 1, 'b'), (3, 2, 'c');
delete from s where id = 1;
begin;
insert into s values (4);
savepoint x;
insert into s values (5);
rollback to x;
insert into s values (6);
commit;
create table row_in_row (id int primary key, c c, ca c[]);
select t('row_in_row');
insert into row_in_row select 1, c, array[c] from c order by id limit 1""",
}

# Tables wide enough for each way there is to take a row apart.
SCRIPTS["wide_tables"] = "".join(
    f"""
create table w{n} (id int primary key, {", ".join(
        f"c{i} {('int', 'text', 'bool', 'numeric', 'timestamptz', 'date', 'json', 'int[]')[i % 8]}" for i in range(n - 1)
    )});
select t('w{n}', $$, 'backup'$$);
insert into w{n} (id, c0, c1, c2, c3, c4, c5, c6, c7)
    values (1, 5, 'a "q" , (x)', true, 1.50, '2020-01-01 12:00', '2020-01-01', '{{"a":[1,2]}}', '{{1,2}}');
insert into w{n} (id, c{n - 2}) values (2, null);
update w{n} set c0 = 7, c1 = 'x&y';
update w{n} set c0 = 7, c1 = null where id = 1;
delete from w{n};"""
    for n in (15, 16, 17, 63, 64, 65, 100, 300)
)

# What not every build of PostgreSQL has: the statement that tells, and the script.
OPTIONAL_SCRIPTS = {
    "xml": (
        "select '<a/>'::xml",
        r"""
create table x (id int primary key, x xml);
select t('x');
insert into x values (1, '<a>"\</a>');
update x set x = '<a>"\</a>';
update x set x = '<a></a>';
delete from x""",
    ),
    "nondeterministic_collation": (
        "create collation probe (provider = icu, locale = 'und', deterministic = false)",
        r"""
create collation ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
create domain dt as text;
create table x (id int primary key, t text collate ci, d dt collate ci, v varchar collate "C");
select t('x');
insert into x values (1, 'a', 'a', 'a');
update x set t = 'A';
update x set d = 'A';
update x set v = 'A'""",
    ),
    "citext": (
        "create extension citext schema public",
        r"""
create table x (id int primary key, t public.citext);
select t('x', $$, 'ignore=id'$$);
insert into x values (1, 'a');
update x set t = 'A';
update x set t = 'b'""",
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What a statement did: whether it failed, and the events it made."""

    statement: str
    failed: bool
    events: list[tuple[str | None, ...]]


class Side:
    """One of the two schemas; statements run on `conn`, events are read on another connection."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self._reader = psycopg.connect(dsn, autocommit=True)
        self.conn.execute("select pgq.create_queue(%s)", [QUEUE])
        self.conn.execute("set client_min_messages = warning")
        self._seen = 0

    def close(self) -> None:
        self.conn.close()
        self._reader.close()

    def start_over(self) -> None:
        """An empty schema ``t``, first on the search_path."""
        self.conn.execute("reset all")
        self.conn.execute("set client_min_messages = warning")
        self.conn.execute("set timezone = 'UTC'")
        self.conn.execute("drop schema if exists t cascade")
        self.conn.execute("create schema t")
        self.conn.execute("set search_path = t, public")
        self.conn.execute(HELPERS)

    def run(self, statement: str) -> Outcome:
        failed = False
        try:
            self.conn.execute(statement.encode())
        except psycopg.Error:
            failed = True
        rows = self._reader.execute(
            "select ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
            " from pgq.event_template where ev_id > %s order by ev_id",
            [self._seen],
        ).fetchall()
        if rows:
            self._seen = rows[-1][0]
        return Outcome(statement, failed, [row[1:] for row in rows])


def compare(theirs: Side, ours: Side, script: str) -> int:
    """Run a script on both; returns the number of events."""
    total = 0
    for side in (theirs, ours):
        side.start_over()
    for statement in script.split(";\n"):
        expected = theirs.run(statement)
        assert ours.run(statement) == expected
        total += len(expected.events)
    return total


@pytest.mark.parametrize("name", SCRIPTS)
def test_events_are_identical(name: str, pgq_reference_dsn: str, dsn: str) -> None:
    theirs, ours = Side(pgq_reference_dsn), Side(dsn)
    try:
        events = compare(theirs, ours, SCRIPTS[name])
    finally:
        theirs.close()
        ours.close()
    assert events > 0 or name == "wrong_arguments"


@pytest.mark.parametrize("name", OPTIONAL_SCRIPTS)
def test_events_are_identical_for_optional_features(
    name: str, server: Server, pgq_reference_dsn: str, dsn: str
) -> None:
    probe, script = OPTIONAL_SCRIPTS[name]
    theirs, ours = Side(pgq_reference_dsn), Side(dsn)
    try:
        for side in (theirs, ours):
            try:
                side.conn.execute(probe.encode())
            except psycopg.errors.FeatureNotSupported:
                pytest.skip(f"PostgreSQL {server.version} here is built without it")
        assert compare(theirs, ours, script) > 0
    finally:
        theirs.close()
        ours.close()
