-- Cache of what the row triggers (sqltriga, logutriga, jsontriga) know about a table: derived from the catalog and the
-- trigger's arguments when a trigger first fires, and looked up for every later row. PL/pgSQL has no variables that
-- outlive a call, and reading pg_attribute for each row costs more than all the rest.
--
-- A row of this table is never trusted: a trigger uses it only if the row at hand has exactly the columns and types
-- that it was made for (see pgq._row_event), so the next row notices an ALTER TABLE. There is no unique key on purpose:
-- two sessions that fire a new trigger at once must not wait for each other's commit. A second copy does no harm and is
-- removed later.
create sequence pgq.row_layout_made;

create unlogged table pgq.row_layout (
    relation        oid     not null,
    arguments       text[]  not null,   -- the trigger's, queue name first
    made            bigint  not null,   -- the highest counts

    -- identification of the table: all columns, then the row with each set to null, as text and with its types
    columns         name[]  not null,
    types           oid[]   not null,
    blank           jsonb,              -- null if a column's type is a domain, which may refuse null
    blank_text      text    not null,
    shape           bytea   not null,
    key_index       oid,                -- the primary key's index, unless the pkey argument names the key

    -- from the arguments
    has_pkey        boolean not null,   -- there is a pkey argument
    keyless         boolean not null,   -- neither that nor a primary key
    key_list        text    not null,   -- the key as logutriga writes it
    key_json        text    not null,   -- and as jsontriga does
    key_columns     int[]   not null,   -- positions in columns, ascending
    hidden          boolean[] not null, -- by column: ignored, or its name starts with _pgq_ev_
    by_operator     boolean[] not null, -- by column: equal values may differ as text
    has_generated   boolean not null,   -- stored generated columns
    has_ignore      boolean not null,
    skip            boolean not null,
    backup          boolean not null,
    deny            boolean not null,
    queries         text[]  not null,   -- for when=, ev_type=, ev_data=, ev_extra1..4=; null where there is none
    magic_columns   int[],              -- positions of _pgq_ev_type, .._data, .._extra1..4; null if there are none
    special         boolean not null,   -- any of the above that an ordinary trigger has not

    -- templates for format()
    json_plain      boolean not null,   -- row_to_json() alone is right
    json_template   text    not null,
    json_convert    int[]   not null,   -- columns whose JSON is neither their text nor that in quotes
    url_template    text    not null,
    values_query    text                -- for tables that are too wide for pgq.row_text_64
);

create index row_layout_relation on pgq.row_layout (relation, made);

-- Reading a row's text back as one of these types gives the text of each column exactly as its type writes it.
do $$
declare
    width int;
begin
    foreach width in array array[16, 64]
    loop
        execute (select format('create type pgq.row_text_%s as (%s)', width, string_agg(format('c%s text', n), ', ' order by n))
                   from generate_series(1, width) n);
    end loop;
end;
$$;
