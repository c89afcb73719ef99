package record

import (
	"encoding/hex"
	"maps"
	"strconv"
	"strings"
	"time"
)

// Package messaging, which exports the properties, documents them.
const (
	propertyPrefix = "aviary_"

	PropertyReason               = "aviary_reason"
	PropertyAttempts             = "aviary_attempts"
	PropertyFirstFailedAt        = "aviary_first_failed_at"
	PropertyOriginTopic          = "aviary_origin_topic"
	PropertyOriginID             = "aviary_origin_id"
	PropertyOriginPublishedAt    = "aviary_origin_published_at"
	PropertyOriginProducer       = "aviary_origin_producer"
	PropertyOriginReplicatedFrom = "aviary_origin_replicated_from"
	PropertyDueAt                = "aviary_due_at"
	PropertySubscription         = "aviary_subscription"
	PropertyTruncated            = "aviary_truncated"
	PropertyEmpty                = "aviary_empty"
	PropertyEscape               = "aviary_user."
)

const (
	reasonBytes     = 1 << 10 // bounds PropertyReason
	bareReasonBytes = 64      // bounds it where the copy was too large
)

// Provenance is a copy's data about its original and about the attempts at it.
type Provenance struct {
	Attempts     int
	Reason       string
	FirstFailed  time.Time
	Due          time.Time // zero on dead letters
	Subscription string
	Truncated    int  // size of the original's payload, 0 when the copy has all of it
	Empty        bool // the copy's payload is empty and not null

	Topic          string
	id             MessageID
	PublishTime    time.Time
	Producer       string
	ReplicatedFrom string
}

// ProvenanceOf is what copies of d say.
func ProvenanceOf(d *Delivery, subscription, reason string) Provenance {
	return Provenance{
		Attempts: d.Attempt, Reason: reason, FirstFailed: d.FirstFailed, Subscription: subscription,
		Topic: d.Topic, id: d.ID, PublishTime: d.PublishTime, Producer: d.ProducerName,
		ReplicatedFrom: d.ReplicatedFrom,
	}
}

// Marks are the provenance as properties. bare leaves out what no further attempt needs.
func (p Provenance) Marks(bare bool) map[string]string {
	m := map[string]string{
		PropertyReason:        cut(p.Reason, reasonBytes),
		PropertyAttempts:      strconv.Itoa(p.Attempts),
		PropertyFirstFailedAt: formatTime(p.FirstFailed),
		PropertyOriginTopic:   p.Topic,
		PropertyOriginID:      hex.EncodeToString(p.id.Bytes()),
		PropertySubscription:  p.Subscription,
	}
	if !p.Due.IsZero() {
		m[PropertyDueAt] = formatTime(p.Due)
	}
	if p.Truncated > 0 {
		m[PropertyTruncated] = strconv.Itoa(p.Truncated)
	}
	if p.Empty {
		m[PropertyEmpty] = "true"
	}
	if bare {
		m[PropertyReason] = cut(p.Reason, bareReasonBytes)
		return m
	}
	m[PropertyOriginPublishedAt] = formatTime(p.PublishTime)
	m[PropertyOriginProducer] = p.Producer
	if p.ReplicatedFrom != "" {
		m[PropertyOriginReplicatedFrom] = p.ReplicatedFrom
	}
	return m
}

// ReadProvenance reads the properties of a copy. ok is false for a message that is no copy.
func ReadProvenance(properties map[string]string) (p Provenance, ok bool) {
	attempts, err := strconv.Atoi(properties[PropertyAttempts])
	topic := properties[PropertyOriginTopic]
	if err != nil || topic == "" {
		return Provenance{}, false
	}
	p = Provenance{
		Attempts: attempts, Reason: properties[PropertyReason], Topic: topic,
		FirstFailed:    parseTime(properties[PropertyFirstFailedAt]),
		Due:            parseTime(properties[PropertyDueAt]),
		Subscription:   properties[PropertySubscription],
		PublishTime:    parseTime(properties[PropertyOriginPublishedAt]),
		Producer:       properties[PropertyOriginProducer],
		ReplicatedFrom: properties[PropertyOriginReplicatedFrom],
		Empty:          properties[PropertyEmpty] == "true",
	}
	p.Truncated, _ = strconv.Atoi(properties[PropertyTruncated])
	if b, err := hex.DecodeString(properties[PropertyOriginID]); err == nil {
		p.id, _ = ParseMessageID(b)
	}
	return p, true
}

// Restore makes the delivery of a copy look like its original.
func (p Provenance) Restore(d *Delivery) {
	d.Topic, d.FirstFailed = p.Topic, p.FirstFailed
	d.ProducerName, d.ReplicatedFrom = p.Producer, p.ReplicatedFrom
	if !p.PublishTime.IsZero() {
		d.PublishTime = p.PublishTime
	}
	if !p.id.IsZero() {
		d.ID, d.Partition = p.id, p.id.Partition()
	}
	if p.Empty {
		d.Payload = []byte{}
	}
	d.Properties = unescape(d.Properties)
}

// Escape adds to marks the original's own properties.
func Escape(own, marks map[string]string) map[string]string {
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

// parseTime returns the zero time for a text that is not a time.
func parseTime(text string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, text)
	return t
}
