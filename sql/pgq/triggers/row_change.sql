create or replace function pgq._changed_columns(
    i_layout pgq.row_layout, i_old anyelement, i_new anyelement, i_old_values text[], i_new_values text[], i_columns int[])
returns int[]
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq._changed_columns(6)
--
--      Returns the columns that an UPDATE has changed. As in PgQ, a column is unchanged if its type calls the values
--      equal, even if they are written differently. Internal.
--
-- Parameters:
--      i_layout        - layout of the table
--      i_old, i_new    - the row before and after
--      i_old_values, i_new_values - the same as texts
--      i_columns       - positions of the columns to look at
-- Returns:
--      The positions of the changed columns.
-- ----------------------------------------------------------------------
declare
    -- With too few digits, different numbers are written alike.
    v_rounded   constant boolean := pg_catalog.current_setting('extra_float_digits')::int < 1;
    v_changed   int[] := '{}';
    v_column    int;
    v_differs   boolean;
begin
    foreach v_column in array i_columns
    loop
        v_differs := i_old_values[v_column] is distinct from i_new_values[v_column];
        if i_layout.by_operator[v_column] and (v_differs or v_rounded)
                and i_old_values[v_column] is not null and i_new_values[v_column] is not null then
            begin
                -- Comparing them as rows uses the type's own equality, whatever the search_path.
                execute pg_catalog.format('select pg_catalog.record_ne(row(($1).%1$I), row(($2).%1$I))',
                                          i_layout.columns[v_column])
                   into v_differs
                  using i_old, i_new;
            exception when undefined_function then
                null;  -- a composite type with a field that has no equality
            end;
        end if;
        if v_differs then
            v_changed := v_changed || v_column;
        end if;
    end loop;
    return v_changed;
end;
$$;
