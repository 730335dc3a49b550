create collation ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
create domain dt as text;
create table x (id int primary key, t text collate ci, d dt collate ci, v varchar collate "C");
select t('x');
insert into x values (1, 'a', 'a', 'a');
update x set t = 'A';
update x set d = 'A';
update x set v = 'A';
