-- t(table, arguments...) puts one trigger of each kind on a table; one(kind, table, ...) only that one.
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
