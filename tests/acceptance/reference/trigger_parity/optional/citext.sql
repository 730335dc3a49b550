create table x (id int primary key, t public.citext);
select t('x', $$, 'ignore=id'$$);
insert into x values (1, 'a');
update x set t = 'A';
update x set t = 'b';
