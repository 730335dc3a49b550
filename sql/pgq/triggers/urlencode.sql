create or replace function pgq._urlencode(i_text text)
returns text
language plpgsql
immutable strict parallel safe
as $$
-- ----------------------------------------------------------------------
-- Function: pgq._urlencode(1)
--
--      Encodes a text for a urlencoded row: letters, digits, '_', '.' and '-' stay, a space becomes '+',
--      each other byte (in the database's encoding) '%' and two lower case hex digits. Internal.
-- ----------------------------------------------------------------------
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
            pg_catalog.encode(pg_catalog.convert_to(v_char, pg_catalog.getdatabaseencoding()), 'hex'), '(..)', '%\1', 'g'));
    end loop;

    -- Other values (long texts outside ASCII): encode all bytes, then decode those that may stay. A '%' starts every
    -- group of three, so no replacement can span two groups.
    v_text := pg_catalog.regexp_replace(
        pg_catalog.encode(pg_catalog.convert_to(i_text, pg_catalog.getdatabaseencoding()), 'hex'), '(..)', '%\1', 'g');
    foreach v_char in array
        pg_catalog.string_to_array('ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-', null)
    loop
        v_text := pg_catalog.replace(v_text, '%' || pg_catalog.to_hex(pg_catalog.ascii(v_char)), v_char);
    end loop;
    return pg_catalog.replace(v_text, '%20', '+');
end;
$$;
