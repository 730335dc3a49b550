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
delete from "A";
