create or replace function pgq_task.set_station(queue text, pipeline text, is_start boolean, leads_to text[])
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
as $$
-- Notes that a queue is a station of a pipeline, for those that draw it: its workers do this when they start.
-- Parameters:
--      queue       - the queue, named <pipeline>.<station>
--      is_start    - whether tasks are pushed there from outside
--      leads_to    - the stations to which its tasks go on, at most 100
-- Returns: whether it is new, or has changed; if not, nothing is written.
-- Errors: PQ072 a queue of another name, too many stations, or names that are too long; 42501 no right to claim from it
#variable_conflict use_variable
declare
    q           constant pgq_task.queue := pgq_task._find_queue(queue, 'claim');
    v_leads_to  constant text[] := array(select distinct t from unnest(leads_to) t where t is not null order by t);
begin
    if pipeline is null or not starts_with(queue, pipeline || '.') then
        perform pgq_task._raise_invalid(format('task queue %L is no station of pipeline %L', queue, pipeline),
                                        'Its name is that of the pipeline, a dot, and that of the station.');
    elsif cardinality(v_leads_to) > 100 or exists (select from unnest(v_leads_to) t where octet_length(t) > 248) then
        perform pgq_task._raise_invalid(format('station %L leads to too many others, or to long names', queue),
                                        'Give at most 100, with names of at most 248 bytes.');
    end if;
    if exists (select from pgq_task.station s
                where s.queue_id = q.queue_id
                  and (s.pipeline, s.is_start, s.leads_to) = (pipeline, coalesce(is_start, false), v_leads_to)) then
        return false;
    end if;
    insert into pgq_task.station as s (queue_id, pipeline, is_start, leads_to)
    values (q.queue_id, pipeline, coalesce(is_start, false), v_leads_to)
    on conflict on constraint station_pkey do update
       set pipeline = excluded.pipeline, is_start = excluded.is_start, leads_to = excluded.leads_to;
    return true;
end;
$$;

create or replace function pgq_task.get_stations(pipeline text default null)
returns table (queue_name text, station text, pipeline_name text, is_start boolean, leads_to text[])
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the stations of pipelines, as their workers have noted them, whose queues the caller may read.
-- Parameters:
--      pipeline    - its name; null for all
-- Returns: see pgq_task.set_station(4). It may lead to stations that are not among them: those that no worker has
--      served, or whose queues the caller may not read.
    select q.queue_name, substr(q.queue_name, length(s.pipeline) + 2), s.pipeline, s.is_start, s.leads_to
      from pgq_task.station s
      join pgq_task.queue q using (queue_id)
     where (s.pipeline = get_stations.pipeline or get_stations.pipeline is null)
       and (not q.queue_restricted or pgq_task._has_right(q.queue_id, 'read'))
     order by 1;
$$;
