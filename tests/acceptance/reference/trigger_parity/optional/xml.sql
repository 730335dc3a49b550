create table x (id int primary key, x xml);
select t('x');
insert into x values (1, '<a>"\</a>');
update x set x = '<a>"\</a>';
update x set x = '<a></a>';
delete from x;
