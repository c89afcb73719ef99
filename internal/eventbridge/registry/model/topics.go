package model

// Topics returns the names of Eventbridge's topics.
type Topics struct {
	// Namespace is tenant/namespace of all of them.
	Namespace string
}

// These are the subscriptions of Eventbridge's topics.
const (
	EngineSubscription  = "engine"  // of a bus' topic
	DeliverSubscription = "deliver" // of the topics of one subscriber
)

// Registry is the compacted topic of buses and subscribers.
func (t Topics) Registry() string { return t.name("registry") }

// Status is the compacted topic on which instances publish what they do.
func (t Topics) Status() string { return t.name("status") }

// Events is the topic on which a bus' events come in.
func (t Topics) Events(bus string) string { return t.name(bus + "-events") }

// BusDeadLetter is the topic of a bus' dead letters: events that the engine cannot decode or match. An
// event that merely matches no rule is not among them.
func (t Topics) BusDeadLetter(bus string) string { return t.Events(bus) + "-DLQ" }

// Send is the send topic of one subscriber.
func (t Topics) Send(s *Subscriber) string { return t.name(s.Bus + "-to-" + s.Name + "-" + s.UID) }

// Retry is the topic of copies that wait for another attempt.
func (t Topics) Retry(s *Subscriber) string { return t.Send(s) + "-RETRY" }

// DeadLetter is the topic of a subscriber's dead letters.
func (t Topics) DeadLetter(s *Subscriber) string { return t.Send(s) + "-DLQ" }

// Replay is the topic of copies that jobs send again.
func (t Topics) Replay(s *Subscriber) string { return t.Send(s) + "-replay" }

func (t Topics) name(rest string) string {
	return "persistent://" + t.Namespace + "/eventbridge-" + rest
}
