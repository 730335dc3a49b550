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
update jsonkey set id = '{"a": 1}';
