package messaging

import (
	"encoding/hex"
	"maps"
	"strconv"
	"strings"
	"time"
)

// Properties that copies on retry and dead-letter topics carry besides the original's own. Times
// are RFC 3339 in UTC, with nanoseconds.
//
// The original's own properties are kept under their names, except those that begin with
// "aviary_": these are kept under their name behind [PropertyEscape], so that they can always be
// told from the copy's. [Delivery.DeadLetter] gives the original's back.
const (
	// PropertyReason is why the last attempt failed.
	PropertyReason = "aviary_reason"
	// PropertyAttempts is how many attempts were made.
	PropertyAttempts = "aviary_attempts"
	// PropertyFirstFailedAt is when the first attempt failed.
	PropertyFirstFailedAt = "aviary_first_failed_at"
	// PropertyOriginTopic is the topic (partition) of the original message.
	PropertyOriginTopic = "aviary_origin_topic"
	// PropertyOriginID is the original's message id, as hexadecimal MessageIdData.
	PropertyOriginID = "aviary_origin_id"
	// PropertyOriginPublishedAt is when the original was published.
	PropertyOriginPublishedAt = "aviary_origin_published_at"
	// PropertyOriginProducer is the name of the original's producer.
	PropertyOriginProducer = "aviary_origin_producer"
	// PropertyOriginReplicatedFrom is the cluster that the original came from.
	PropertyOriginReplicatedFrom = "aviary_origin_replicated_from"
	// PropertyDueAt is the time before which no further attempt is to be made.
	PropertyDueAt = "aviary_due_at"
	// PropertySubscription is the subscription whose consumer made the copy.
	PropertySubscription = "aviary_subscription"
	// PropertyTruncated is the size of the original's payload in bytes. Only a dead letter whose
	// payload was cut has it: see [TruncateUnstorable].
	PropertyTruncated = "aviary_truncated"
	// PropertyEmpty is "true" on every message that this library publishes outside batches, a copy
	// or not, and whose payload is empty and not null. Deliveries do not show it. Other consumers
	// on pulsar-client-go v0.21.0 see some bytes in place of a compressed empty payload: it does
	// not decompress what was empty (consumer_partition.go, MessageReceived).
	PropertyEmpty = "aviary_empty"
	// PropertyEscape stands in front of the names of the original's own properties that begin
	// with "aviary_".
	PropertyEscape = "aviary_user."
)

const propertyPrefix = "aviary_"

const (
	// reasonBytes bounds PropertyReason.
	reasonBytes = 1 << 10
	// bareReasonBytes bounds it where the copy was too large.
	bareReasonBytes = 64
)

// provenance is what a copy says about its original and about the attempts at it.
type provenance struct {
	attempts     int
	reason       string
	firstFailed  time.Time
	due          time.Time // zero on dead letters
	subscription string
	truncated    int  // size of the original's payload, 0 when the copy has all of it
	empty        bool // the copy's payload is empty and not null

	topic          string
	id             MessageID
	publishTime    time.Time
	producer       string
	replicatedFrom string
}

// provenanceOf is what copies of d say.
func provenanceOf(d *Delivery, subscription, reason string) provenance {
	return provenance{
		attempts: d.Attempt, reason: reason, firstFailed: d.FirstFailed, subscription: subscription,
		topic: d.Topic, id: d.ID, publishTime: d.PublishTime, producer: d.ProducerName,
		replicatedFrom: d.ReplicatedFrom,
	}
}

// marks are the provenance as properties. bare leaves out what no further attempt needs.
func (p provenance) marks(bare bool) map[string]string {
	m := map[string]string{
		PropertyReason:        cut(p.reason, reasonBytes),
		PropertyAttempts:      strconv.Itoa(p.attempts),
		PropertyFirstFailedAt: formatTime(p.firstFailed),
		PropertyOriginTopic:   p.topic,
		PropertyOriginID:      hex.EncodeToString(p.id.Bytes()),
		PropertySubscription:  p.subscription,
	}
	if !p.due.IsZero() {
		m[PropertyDueAt] = formatTime(p.due)
	}
	if p.truncated > 0 {
		m[PropertyTruncated] = strconv.Itoa(p.truncated)
	}
	if p.empty {
		m[PropertyEmpty] = "true"
	}
	if bare {
		m[PropertyReason] = cut(p.reason, bareReasonBytes)
		return m
	}
	m[PropertyOriginPublishedAt] = formatTime(p.publishTime)
	m[PropertyOriginProducer] = p.producer
	if p.replicatedFrom != "" {
		m[PropertyOriginReplicatedFrom] = p.replicatedFrom
	}
	return m
}

// readProvenance reads the properties of a copy. ok is false for a message that is no copy.
func readProvenance(properties map[string]string) (p provenance, ok bool) {
	attempts, err := strconv.Atoi(properties[PropertyAttempts])
	topic := properties[PropertyOriginTopic]
	if err != nil || topic == "" {
		return provenance{}, false
	}
	p = provenance{
		attempts: attempts, reason: properties[PropertyReason], topic: topic,
		firstFailed:    parseTime(properties[PropertyFirstFailedAt]),
		due:            parseTime(properties[PropertyDueAt]),
		subscription:   properties[PropertySubscription],
		publishTime:    parseTime(properties[PropertyOriginPublishedAt]),
		producer:       properties[PropertyOriginProducer],
		replicatedFrom: properties[PropertyOriginReplicatedFrom],
	}
	p.empty = properties[PropertyEmpty] == "true"
	p.truncated, _ = strconv.Atoi(properties[PropertyTruncated])
	if b, err := hex.DecodeString(properties[PropertyOriginID]); err == nil {
		if id, err := ParseMessageID(b); err == nil {
			p.id = id
		}
	}
	return p, true
}

// restore makes the delivery of a copy look like its original.
func (p provenance) restore(d *Delivery) {
	d.Topic, d.FirstFailed = p.topic, p.firstFailed
	d.ProducerName, d.ReplicatedFrom = p.producer, p.replicatedFrom
	if !p.publishTime.IsZero() {
		d.PublishTime = p.publishTime
	}
	if !p.id.IsZero() {
		d.ID, d.Partition = p.id, p.id.Partition()
	}
	if p.empty {
		d.Payload = []byte{}
	}
	d.Properties = unescape(d.Properties)
}

// escape adds to marks the original's own properties.
func escape(own, marks map[string]string) map[string]string {
	all := make(map[string]string, len(own)+len(marks))
	maps.Copy(all, marks)
	for name, value := range own {
		if strings.HasPrefix(name, propertyPrefix) {
			name = PropertyEscape + name
		}
		all[name] = value
	}
	return all
}

// unescape takes the original's own properties out of a copy's: nil when there are none.
func unescape(all map[string]string) map[string]string {
	own := make(map[string]string, len(all))
	for name, value := range all {
		original, escaped := strings.CutPrefix(name, PropertyEscape)
		if escaped || !strings.HasPrefix(name, propertyPrefix) {
			own[original] = value
		}
	}
	if len(own) == 0 {
		return nil
	}
	return own
}

// cut makes text valid UTF-8 of at most n bytes.
func cut(text string, n int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > n {
		text = strings.ToValidUTF8(text[:n], "")
	}
	return text
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// parseTime is the zero time for what is no time.
func parseTime(text string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, text)
	return t
}
