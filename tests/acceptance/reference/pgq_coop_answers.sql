-- What PgQ's pgq_coop answers, recorded on PgQ 3.5 in PostgreSQL 15. Debian has no package of it to compare with.

-- batches of two workers
select pgq.create_queue('q')
--> [(1,)]
select pgq_coop.register_subconsumer('q', 'main', 'w1')
--> [(1,)]
select pgq_coop.register_subconsumer('q', 'main', 'w1')
--> [(0,)]
select pgq_coop.register_subconsumer('q', 'main', 'w2')
--> [(1,)]
select pgq_coop.register_subconsumer('nope', 'main', 'w2')
--> error
select pgq_coop.register_subconsumer('q', 'main', null)
--> error
select pgq_coop.register_subconsumer('q', null, 'w1')
--> error
select queue_name, consumer_name, last_tick, current_batch, next_tick, pending_events from pgq.get_consumer_info()
--> [('q', 'main', 1, None, None, 0), ('q', 'main.w1', None, None, None, None), ('q', 'main.w2', None, None, None, None)]
select pgq_coop.next_batch('q', 'main', 'w1')
--> [(None,)]
select pgq.insert_event('q', 't', 'one') > 0
--> [(True,)]
tick
select pgq_coop.next_batch('q', 'main', 'w1')
--> [(1,)]
select pgq_coop.next_batch('q', 'main', 'w1')
--> [(1,)]
select pgq_coop.next_batch('q', 'main', 'w2')
--> [(None,)]
select queue_name, consumer_name, last_tick, current_batch, next_tick from pgq.get_consumer_info()
--> [('q', 'main', 2, None, None), ('q', 'main.w1', 1, 1, 2), ('q', 'main.w2', None, None, None)]
select queue_name, consumer_name, prev_tick_id, tick_id from pgq.get_batch_info(1)
--> [('q', 'main.w1', 1, 2)]
select ev_data, ev_retry from pgq.get_batch_events(1)
--> [('one', None)]
select pgq.insert_event('q', 't', 'two') > 0
--> [(True,)]
tick
select pgq_coop.next_batch('q', 'main', 'w2')
--> [(2,)]
select ev_data, ev_retry from pgq.get_batch_events(2)
--> [('two', None)]
select queue_name, consumer_name, last_tick, current_batch, next_tick from pgq.get_consumer_info()
--> [('q', 'main', 3, None, None), ('q', 'main.w1', 1, 1, 2), ('q', 'main.w2', 2, 2, 3)]
select pgq.event_retry(2, (select ev_id from pgq.get_batch_events(2)), -1)
--> [(1,)]
select pgq_coop.finish_batch(2)
--> [(1,)]
select pgq_coop.finish_batch(2)
--> [(0,)]
select pgq_coop.finish_batch(99)
--> [(0,)]
select pgq_coop.finish_batch(null)
--> [(0,)]
select pgq.maint_retry_events()
--> [(1,)]
tick
select pgq_coop.next_batch('q', 'main', 'w2')
--> [(3,)]
select ev_data, ev_retry from pgq.get_batch_events(3)
--> [('two', 1)]
select pgq_coop.finish_batch(1)
--> [(1,)]
select pgq_coop.finish_batch(3)
--> [(1,)]
select queue_name, consumer_name, last_tick, current_batch, next_tick from pgq.get_consumer_info()
--> [('q', 'main', 4, None, None), ('q', 'main.w1', None, None, None), ('q', 'main.w2', None, None, None)]

-- a worker dies
select pgq.create_queue('q')
--> [(1,)]
select pgq_coop.register_subconsumer('q', 'main', 'w1')
--> [(1,)]
select pgq.insert_event('q', 't', 'one') > 0
--> [(True,)]
tick
select pgq_coop.next_batch('q', 'main', 'w1', '1 hour')
--> [(1,)]
select pgq_coop.next_batch('q', 'main', 'w2', '1 hour')
--> [(None,)]
update pgq.subscription set sub_active = '2005-01-01' where sub_batch is not null
--> 1
select pgq_coop.next_batch('q', 'main', 'w2')
--> [(None,)]
select pgq_coop.next_batch('q', 'main', 'w2', '1 hour')
--> [(1,)]
select pgq_coop.next_batch('q', 'main', 'w2', '1 hour')
--> [(1,)]
select ev_data from pgq.get_batch_events(1)
--> [('one',)]
select consumer_name, last_tick, current_batch, next_tick from pgq.get_consumer_info()
--> [('main', 2, None, None), ('main.w2', 1, 1, 2)]
select pgq_coop.next_batch('q', 'main', 'w1', '1 hour')
--> [(None,)]
select consumer_name, last_tick, current_batch, next_tick from pgq.get_consumer_info()
--> [('main', 2, None, None), ('main.w1', None, None, None), ('main.w2', 1, 1, 2)]
select pgq_coop.finish_batch(1)
--> [(1,)]
select pgq_coop.finish_batch(1)
--> [(0,)]
update pgq.subscription set sub_active = '2005-01-01'
--> 3
select pgq_coop.next_batch('q', 'main', 'w2', '1 hour')
--> [(None,)]
select consumer_name, last_tick, current_batch, next_tick from pgq.get_consumer_info()
--> [('main', 2, None, None), ('main.w2', None, None, None)]

-- a worker that asks again lives
select pgq.create_queue('q')
--> [(1,)]
select pgq_coop.register_subconsumer('q', 'main', 'w1')
--> [(1,)]
select pgq.insert_event('q', 't', 'one') > 0
--> [(True,)]
tick
select pgq_coop.next_batch('q', 'main', 'w1')
--> [(1,)]
update pgq.subscription set sub_active = '2005-01-01' where sub_batch is not null
--> 1
select pgq_coop.next_batch('q', 'main', 'w1')
--> [(1,)]
select pgq_coop.next_batch('q', 'main', 'w2', '1 hour')
--> [(None,)]
select count(*) from pgq.subscription where sub_active > now() - interval '1 hour'
--> [(3,)]

-- workers and consumers go
select pgq.create_queue('q')
--> [(1,)]
select pgq_coop.register_subconsumer('q', 'main', 'w1')
--> [(1,)]
select pgq_coop.register_subconsumer('q', 'main', 'w2')
--> [(1,)]
select pgq.insert_event('q', 't', 'one') > 0
--> [(True,)]
tick
select pgq_coop.next_batch('q', 'main', 'w1')
--> [(1,)]
select pgq_coop.unregister_subconsumer('q', 'main', 'w1', 0)
--> error
select pgq_coop.unregister_subconsumer('q', 'main', 'w1', 2)
--> error
select pgq_coop.unregister_subconsumer('q', 'main', 'w1', null)
--> error
select pgq_coop.unregister_subconsumer('q', 'main', 'w1', 1)
--> [(1,)]
select pgq_coop.unregister_subconsumer('q', 'main', 'w1', 1)
--> [(0,)]
select pgq_coop.finish_batch(1)
--> [(0,)]
select pgq_coop.unregister_subconsumer('q', 'main', 'w2', 0)
--> [(1,)]
select pgq_coop.unregister_subconsumer('nope', 'main', 'w2', 0)
--> [(0,)]
select pgq_coop.unregister_subconsumer('q', 'nope', 'w2', 0)
--> [(0,)]
select pgq_coop.unregister_subconsumer('q', 'main', null, 0)
--> [(0,)]
select consumer_name, last_tick, current_batch, next_tick from pgq.get_consumer_info()
--> [('main', 2, None, None)]
select pgq_coop.next_batch('q', 'main', 'w3')
--> [(None,)]
select pgq_coop.next_batch('q', 'other', 'w1')
--> [(None,)]
select pgq_coop.next_batch('nope', 'other', 'w1')
--> error
select consumer_name, last_tick, current_batch, next_tick from pgq.get_consumer_info()
--> [('main', 2, None, None), ('main.w3', None, None, None), ('other', 2, None, None), ('other.w1', None, None, None)]
select pgq.drop_queue('q')
--> error
select pgq.unregister_consumer('q', 'main.w3')
--> [(1,)]
select pgq.unregister_consumer('q', 'main')
--> [(1,)]
select pgq.unregister_consumer('q', 'other')
--> [(2,)]
select pgq.drop_queue('q')
--> [(1,)]

-- batches of a wanted size, and a consumer that does not share
select pgq.create_queue('q')
--> [(1,)]
select pgq_coop.register_subconsumer('q', 'main', 'w1')
--> [(1,)]
select pgq.insert_event('q', 't', 'one') > 0
--> [(True,)]
tick
select pgq_coop.next_batch_custom('q', 'main', 'w1', null, 3, null)
--> [(1,)]
select pgq_coop.next_batch_custom('q', 'main', 'w1', '1 hour', null, null)
--> [(1,)]
select pgq_coop.next_batch_custom('q', 'main', 'w1', null, null, '1 hour')
--> [(1,)]
select pgq.insert_event('q', 't', n::text) > 0 from generate_series(1, 3) n
--> [(True,), (True,), (True,)]
tick
select pgq_coop.next_batch_custom('q', 'main', 'w1', null, 3, null, '1 hour')
--> [(1,)]
select ev_data from pgq.get_batch_events(1)
--> [('one',)]
select pgq_coop.next_batch_custom('q', 'main', 'w1', null, null, null)
--> [(1,)]
select pgq.next_batch('q', 'main')
--> [(2,)]
select pgq_coop.finish_batch(1)
--> [(1,)]
select pgq.insert_event('q', 't', 'two') > 0
--> [(True,)]
tick
select pgq.next_batch('q', 'main')
--> [(2,)]
select pgq_coop.next_batch('q', 'main', 'w1')
--> error
select pgq.finish_batch(2)
--> [(1,)]
select pgq_coop.next_batch('q', 'main', 'w1')
--> [(3,)]
