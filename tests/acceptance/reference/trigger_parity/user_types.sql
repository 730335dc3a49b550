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
delete from u;
