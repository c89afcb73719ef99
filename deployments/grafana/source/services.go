package main

// ready returns the panel of how many processes there are, and how many of them are ready.
func ready() panel {
	return panel{"Processes", count, []query{
		{"ready", `sum(aviary_ready{job=~"$job"})`},
		{"scraped", `count(up{job=~"$job"})`},
	}}
}

func nightingale() board {
	return board{
		name: "nightingale", title: "Nightingale", alerts: "Nightingale", jobs: "nightingale_in_flight_bytes",
		status: []panel{
			ready(),
			one("Requests answered 2xx", share, "", `sum(rate(nightingale_requests_total{job=~"$job", code=~"2.."}[$window])) / sum(rate(nightingale_requests_total{job=~"$job"}[$window]))`),
			one("Lost messages", count, "", `sum(increase(nightingale_dropped_messages_total{job=~"$job"}[$__range]))`),
		},
		throughput: []panel{
			one("Samples", perSecond, "{{kind}} {{result}}", `sum by (kind, result) (rate(nightingale_samples_total{job=~"$job"}[$window])) > 0`),
			one("Requests", perSecond, "{{code}}", `sum by (code) (rate(nightingale_requests_total{job=~"$job"}[$window])) > 0`),
			one("Bytes", bytesRate, "{{state}}", `sum by (state) (rate(nightingale_bytes_total{job=~"$job"}[$window]))`),
		},
		latency: []panel{
			quantiles("Requests", "nightingale_request_duration_seconds", ""),
			one("Mean time of the stages", seconds, "{{stage}}", `sum by (stage) (rate(nightingale_stage_duration_seconds_sum{job=~"$job"}[$window])) / sum by (stage) (rate(nightingale_stage_duration_seconds_count{job=~"$job"}[$window]))`),
		},
		backlog: []panel{
			one("Requests in flight", count, "{{instance}}", `nightingale_requests_in_flight{job=~"$job"}`),
			one("Bytes in flight, of the limit", share, "{{instance}}", `nightingale_in_flight_bytes{job=~"$job"} / nightingale_in_flight_limit_bytes{job=~"$job"}`),
			one("Publish queue, of the limit", share, "{{instance}}", `sum by (instance) (aviary_messaging_pending_bytes{job=~"$job"}) / on (instance) nightingale_queue_limit{job=~"$job", unit="bytes"}`),
		},
		errors: []panel{
			one("Requests refused", perSecond, "{{reason}}", `sum by (reason) (rate(nightingale_requests_refused_total{job=~"$job"}[$window])) > 0`),
			one("Samples rejected", perSecond, "{{reason}}", `sum by (reason) (rate(nightingale_samples_rejected_total{job=~"$job"}[$window])) > 0`),
			one("Samples filtered", perSecond, "{{reason}}", `sum by (reason) (rate(nightingale_samples_filtered_total{job=~"$job"}[$window])) > 0`),
		},
		resources: []panel{
			one("Senders' connections", count, "{{instance}}", `nightingale_connections{job=~"$job"}`),
			one("Open topics", count, "{{instance}}", `nightingale_topics{job=~"$job"}`),
		},
	}
}

func pigeonhole() board {
	return board{
		name: "pigeonhole", title: "Pigeonhole", alerts: "Pigeonhole", jobs: "pigeonhole_route_up",
		status: []panel{
			ready(),
			{"Routes", count, []query{
				{"running", `sum(max by (route) (pigeonhole_route_up{job=~"$job"}))`},
				{"all", `count(max by (route) (pigeonhole_route_up{job=~"$job"}))`},
			}},
			one("Messages missed in Kafka", count, "", `sum(increase(pigeonhole_kafka_gaps_total{job=~"$job"}[$__range])) or vector(0)`),
		},
		throughput: []panel{
			one("Messages", perSecond, "{{route}} {{result}}", `sum by (route, result) (rate(pigeonhole_messages_total{job=~"$job"}[$window])) > 0`),
			one("Bytes stored", bytesRate, "{{route}}", `sum by (route) (rate(pigeonhole_stored_bytes_total{job=~"$job"}[$window]))`),
		},
		latency: []panel{
			one("Oldest message in flight", seconds, "{{route}}", `max by (route) (pigeonhole_in_flight_age_seconds{job=~"$job"})`),
			quantiles("Stages of a message", `pigeonhole_stage_duration_seconds`, "{{route}} {{stage}}", "route", "stage"),
		},
		backlog: []panel{
			one("At the source", count, "{{route}}", `sum by (route) (pigeonhole_lag_messages{job=~"$job"})`),
			one("Messages in flight", count, "{{route}}", `sum by (route) (pigeonhole_in_flight_messages{job=~"$job"})`),
			one("Bytes in flight", bytes, "{{route}}", `sum by (route) (pigeonhole_in_flight_bytes{job=~"$job"})`),
		},
		errors: []panel{
			one("Refused", perSecond, "{{route}} {{reason}}", `sum by (route, reason) (rate(pigeonhole_refused_total{job=~"$job"}[$window])) > 0`),
			one("Sent again", perSecond, "{{route}}", `sum by (route) (rate(pigeonhole_resent_total{job=~"$job"}[$window]))`),
			one("RabbitMQ connected", count, "{{route}} {{role}}", `max by (route, role) (pigeonhole_rabbitmq_connected{job=~"$job"})`),
		},
	}
}

func sonic() board {
	return board{
		name: "sonic", title: "Sonic", alerts: "Sonic", jobs: "sonic_redis_connected",
		status: []panel{
			ready(),
			one("Equal to the other zones (1 is yes)", count, "{{instance}}", `1 - max by (instance) (sonic_gap{job=~"$job"} or sonic_history_rejected{job=~"$job"})`),
			one("Outbox is full", count, "{{instance}}", `sonic_outbox_full{job=~"$job"}`),
			one("Redis is full", count, "{{instance}}", `sonic_redis_memory_full{job=~"$job"}`),
		},
		throughput: []panel{
			one("Commands of clients", perSecond, "{{class}}", `sum by (class) (rate(sonic_commands_total{job=~"$job"}[$window])) > 0`),
			one("Effects published", perSecond, "{{instance}}", `rate(sonic_published_effects_total{job=~"$job"}[$window])`),
			one("Effects applied", perSecond, "{{instance}} of {{origin}}: {{outcome}}", `sum by (instance, origin, outcome) (rate(sonic_applied_effects_total{job=~"$job"}[$window])) > 0`),
		},
		latency: []panel{
			quantiles("Commands", "sonic_command_duration_seconds", ""),
			one("Behind another zone", seconds, "{{instance}} behind {{origin}}", `max by (instance, origin) (sonic_lag_seconds{job=~"$job"})`),
			quantiles("Age of effects when applied", "sonic_apply_delay_seconds", "of {{origin}}", "origin"),
			quantiles("Publishing", "sonic_publish_duration_seconds", ""),
		},
		backlog: []panel{
			one("Outbox: age of the oldest", seconds, "{{instance}}", `sonic_outbox_age_seconds{job=~"$job"}`),
			one("Outbox: bytes", bytes, "{{instance}}", `sonic_outbox_bytes{job=~"$job"}`),
			one("Effects of other zones", count, "{{instance}} of {{origin}}", `sonic_lag_commands{job=~"$job"}`),
		},
		errors: []panel{
			one("Commands with an unknown outcome", perSecond, "{{instance}}", `rate(sonic_commands_unknown_outcome_total{job=~"$job"}[$window])`),
			one("Clients rejected or too slow", perSecond, "{{instance}}", `rate(sonic_clients_rejected_total{job=~"$job"}[$window]) + rate(sonic_clients_slow_total{job=~"$job"}[$window])`),
			one("Effects lost", count, "{{instance}}", `sonic_outbox_lost_effects_total{job=~"$job"}`),
			one("Slots that are not served", count, "{{instance}}", `sonic_cluster_unserved_slots{job=~"$job"}`),
		},
	}
}

func eventbridge() board {
	return board{
		name: "eventbridge", title: "Eventbridge", alerts: "Eventbridge", jobs: "eventbridge_registry_revision",
		status: []panel{
			ready(),
			one("Requests answered 2xx", share, "", `sum(rate(eventbridge_ingest_requests_total{job=~"$job", code=~"2.."}[$window])) / sum(rate(eventbridge_ingest_requests_total{job=~"$job"}[$window]))`),
			one("Unhealthy subscribers", count, "", `sum(eventbridge_unhealthy_subscribers{job=~"$job"})`),
			one("Dead letters", count, "", `sum(pulsar_subscription_back_log{subscription="deliver", topic=~".+/eventbridge-.+-DLQ"}) or vector(0)`),
		},
		throughput: []panel{
			one("Events in", perSecond, "{{result}}", `sum by (result) (rate(eventbridge_ingest_events_total{job=~"$job"}[$window]))`),
			one("Events matched", perSecond, "{{bus}} {{outcome}}", `sum by (bus, outcome) (rate(eventbridge_engine_events_total{job=~"$job"}[$window])) > 0`),
			one("Attempts", perSecond, "{{subscriber}} {{outcome}}", `sum by (subscriber, outcome) (rate(eventbridge_deliveries_total{job=~"$job"}[$window])) > 0`),
		},
		latency: []panel{
			quantiles("Requests", "eventbridge_ingest_request_duration_seconds", ""),
			quantiles("Until all copies are stored", "eventbridge_engine_stored_age_seconds", "{{bus}}", "bus"),
			quantiles("From the copy to its delivery", "eventbridge_delivered_age_seconds", "{{bus}}", "bus"),
			quantiles("Attempts", "eventbridge_delivery_duration_seconds", "{{target}} {{outcome}}", "target", "outcome"),
		},
		backlog: []panel{
			one("Not matched yet", count, "{{topic}}", `sum by (topic) (pulsar_subscription_back_log{subscription="engine"})`),
			one("Not delivered yet", count, "{{topic}}", `sum by (topic) (pulsar_subscription_back_log{subscription="deliver", topic=~".+/eventbridge-.+", topic!~".+-DLQ"})`),
			one("Interrupted jobs", count, "", `max(eventbridge_interrupted_jobs{job=~"$job"})`),
			one("Attempts in flight", count, "{{subscriber}}", `sum by (subscriber) (eventbridge_deliveries_in_flight{job=~"$job"})`),
		},
		errors: []panel{
			one("Requests refused", perSecond, "{{reason}}", `sum by (reason) (rate(eventbridge_ingest_requests_refused_total{job=~"$job"}[$window])) > 0`),
			one("Copies not stored", perSecond, "{{bus}} {{outcome}}", `sum by (bus, outcome) (rate(eventbridge_engine_copies_total{job=~"$job", outcome!="stored"}[$window]))`),
			one("Send topics that accept nothing", count, "{{bus}}", `sum by (bus) (eventbridge_engine_unhealthy_topics{job=~"$job"})`),
			one("Breakers (2 is open)", count, "{{subscriber}}", `max by (subscriber) (eventbridge_breaker_state{job=~"$job"})`),
		},
		resources: []panel{
			one("Bytes in flight, of the limit", share, "{{instance}}", `eventbridge_ingest_in_flight_bytes{job=~"$job"} / eventbridge_ingest_in_flight_limit_bytes{job=~"$job"}`),
		},
	}
}

func pulsar() board {
	const profile, subscription, reader = "{{job}} {{profile}}", "{{job}} {{subscription}}", "{{job}} {{reader}}"
	return board{
		name: "pulsar", title: "Pulsar, as the services see it", alerts: "Pulsar", jobs: "aviary_ready",
		status: []panel{
			ready(),
			one("Partitions without acknowledgements", count, "{{job}}", `sum by (job) (aviary_messaging_stalled_partitions{job=~"$job"})`),
			one("Partitions that are not read", count, "{{job}}", `sum by (job) (aviary_messaging_reader_interrupted_partitions{job=~"$job"})`),
		},
		throughput: []panel{
			one("Records published", perSecond, profile, `sum by (job, profile) (rate(aviary_messaging_published_records_total{job=~"$job", result="ok"}[$window]))`),
			one("Bytes published", bytesRate, profile, `sum by (job, profile) (rate(aviary_messaging_published_bytes_total{job=~"$job"}[$window]))`),
			one("Messages received", perSecond, subscription, `sum by (job, subscription) (rate(aviary_messaging_received_messages_total{job=~"$job"}[$window]))`),
			one("Messages of readers", perSecond, reader, `sum by (job, reader) (rate(aviary_messaging_reader_messages_total{job=~"$job"}[$window]))`),
		},
		latency: []panel{
			quantiles("Until acknowledged", "aviary_messaging_ack_duration_seconds", profile, "job", "profile"),
			quantiles("Handlers", "aviary_messaging_handler_duration_seconds", subscription, "job", "subscription"),
			one("Age of the latest message of readers", seconds, reader, `max by (job, reader) (aviary_messaging_reader_age_seconds{job=~"$job"})`),
		},
		backlog: []panel{
			one("Records not acknowledged", count, profile, `sum by (job, profile) (aviary_messaging_pending_records{job=~"$job"})`),
			one("Bytes not acknowledged", bytes, profile, `sum by (job, profile) (aviary_messaging_pending_bytes{job=~"$job"})`),
			one("Messages not finished", count, subscription, `sum by (job, subscription) (aviary_messaging_unfinished_messages{job=~"$job"})`),
			one("Messages held for another attempt", count, subscription, `sum by (job, subscription) (aviary_messaging_held_messages{job=~"$job"})`),
		},
		errors: []panel{
			one("Records not stored", perSecond, profile, `sum by (job, profile) (rate(aviary_messaging_published_records_total{job=~"$job", result="error"}[$window]))`),
			one("Producers and subscriptions made again", perSecond, "{{job}} {{reason}}", `sum by (job, reason) (rate(aviary_messaging_producers_recreated_total{job=~"$job"}[$window]) or rate(aviary_messaging_resubscribes_total{job=~"$job"}[$window])) > 0`),
			one("Verdicts other than ack", perSecond, subscription+" {{result}}", `sum by (job, subscription, result) (rate(aviary_messaging_handled_messages_total{job=~"$job", result!="ack"}[$window])) > 0`),
			one("Unreadable, or copies not stored", perSecond, subscription, `sum by (job, subscription) (rate(aviary_messaging_unreadable_messages_total{job=~"$job"}[$window])) + sum by (job, subscription) (rate(aviary_messaging_failed_copies_total{job=~"$job"}[$window]))`),
		},
	}
}
