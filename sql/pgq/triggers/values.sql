create or replace function pgq._row_values(i_row text, i_columns int)
returns text[]
language plpgsql immutable parallel safe
as $$
-- Returns the columns of a row in their text form: exactly what the types' output functions write. JSON would lose it
-- (dates, booleans, arrays, values that are JSON themselves), and so would casts to text (booleans, types with a cast
-- of their own).
-- Parameters:
--      i_row       - the row as text, from row::text
--      i_columns   - how many columns it has, at most 64
-- Returns: one element per column, followed by any number of nulls.
declare
    narrow  pgq.row_text_16;
begin
    -- On any search_path: expressions in a trigger's arguments need the session's.
    if pg_catalog.int4le(i_columns, 16) then
        narrow := pg_catalog.textcat(pg_catalog.textcat(pg_catalog.left(i_row, -1),
                                         pg_catalog.repeat(',', pg_catalog.int4mi(16, greatest(i_columns, 1)))), ')');
        return array[narrow.c1, narrow.c2, narrow.c3, narrow.c4, narrow.c5, narrow.c6, narrow.c7, narrow.c8,
                     narrow.c9, narrow.c10, narrow.c11, narrow.c12, narrow.c13, narrow.c14, narrow.c15, narrow.c16];
    end if;
    return array(
        select value
          from pg_catalog.json_each_text(pg_catalog.row_to_json(
                   pg_catalog.textcat(pg_catalog.textcat(pg_catalog.left(i_row, -1),
                       pg_catalog.repeat(',', pg_catalog.int4mi(64, i_columns))), ')')::pgq.row_text_64)));
end;
$$;

create or replace function pgq._wide_row_values(i_query text, i_row anyelement)
returns text[]
language plpgsql
as $$
-- Does the work of pgq._row_values(2) for tables of more than 64 columns, by a query that names each column.
-- Parameters:
--      i_query - the layout's values_query
--      i_row   - the row
declare
    v_values    text[];
begin
    execute i_query into v_values using i_row;
    return v_values;
end;
$$;

create or replace function pgq._urlencode(i_text text)
returns text
language plpgsql immutable strict parallel safe
as $$
-- Encodes a text for a urlencoded row: letters, digits, '_', '.' and '-' stay, a space becomes '+', each other byte (in
-- the database's encoding) '%' and two lower case hex digits.
declare
    v_text  text := i_text;
    v_char  text;
begin
    if v_text !~ '[^A-Za-z0-9_.-]' then
        return v_text;
    end if;

    -- '%' and '+' first: the other characters are replaced by these
    v_text := pg_catalog.replace(v_text, '%', '%25');
    v_text := pg_catalog.replace(v_text, '+', '%2b');
    v_text := pg_catalog.replace(v_text, ' ', '+');

    -- Ordinary values have few different characters that need it: one replace for each.
    for i in 1 .. 12
    loop
        v_char := pg_catalog.substring(v_text, '[^A-Za-z0-9_.%+-]');
        if v_char is null then
            return v_text;
        end if;
        v_text := pg_catalog.replace(v_text, v_char, pg_catalog.regexp_replace(
            pg_catalog.encode(pg_catalog.convert_to(v_char, pg_catalog.getdatabaseencoding()), 'hex'), '(..)', $re$%\1$re$, 'g'));
    end loop;

    -- Other values (long texts outside ASCII): encode all bytes, then decode those that may stay. A '%' starts every
    -- group of three, so no replacement can span two groups.
    v_text := pg_catalog.regexp_replace(
        pg_catalog.encode(pg_catalog.convert_to(i_text, pg_catalog.getdatabaseencoding()), 'hex'), '(..)', $re$%\1$re$, 'g');
    foreach v_char in array
        pg_catalog.string_to_array('ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-', null)
    loop
        v_text := pg_catalog.replace(v_text, '%' || pg_catalog.to_hex(pg_catalog.ascii(v_char)), v_char);
    end loop;
    return pg_catalog.replace(v_text, '%20', '+');
end;
$$;
