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
delete from a;
