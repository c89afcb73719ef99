package messaging

import (
	"github.com/aviaryhq/aviary/pkg/messaging/internal/adminapi"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/consume"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/redrive"
)

// Errors to look for with errors.Is.
var (
	// ErrClosed is returned by a client, publisher, reader or writer that was closed, and by the
	// publishers, consumers and readers of a closed client.
	ErrClosed = record.ErrClosed
	// ErrAuthentication is in the reason of a failure when a broker, or the issuer of tokens, refused
	// the client's credentials, or they could not be read.
	ErrAuthentication = cluster.ErrAuthentication
	// ErrAuthorization is in the reason of a failure when the broker knows who the client is and does
	// not permit what it asks for.
	ErrAuthorization = cluster.ErrAuthorization
	// ErrTLS is in the reason of a failure when client and broker did not accept one another's
	// certificates.
	ErrTLS = cluster.ErrTLS
	// ErrNoAdminURL: the call needs the brokers' admin API, and [Config].AdminURL is not set.
	ErrNoAdminURL = adminapi.ErrNoAdminURL
	// ErrInvalidTopic says that a topic's name is invalid.
	ErrInvalidTopic = record.ErrInvalidTopic
	// ErrTopicNotFound says that a publisher cannot open: the topic, or its namespace, does not exist,
	// and the broker does not create it. Calls of the admin API return [ErrNotFound] instead.
	ErrTopicNotFound = record.ErrTopicNotFound
	// ErrNamespaceNotFound says, with ErrTopicNotFound, that the namespace does not exist either.
	// Only [Client.TryPublish] and [Client.TryConsume] return it.
	ErrNamespaceNotFound = record.ErrNamespaceNotFound
	// ErrTopicTerminated is the final outcome of records for a terminated topic.
	ErrTopicTerminated = record.ErrTopicTerminated
	// ErrTooLarge is the outcome of a record that is larger than the broker allows. From
	// [Publisher.PublishAsync] it comes in a [TooLargeError].
	ErrTooLarge = record.ErrTooLarge
	// ErrQueueFull is returned under [FailFast] when a bound of the queue is reached.
	ErrQueueFull = record.ErrQueueFull
	// ErrDeduplicated is the outcome of a record without a SequenceID that a broker with
	// deduplication took for a duplicate, at a publisher with a ProducerName. It is stored if the
	// client sent it twice after a reconnection, and not if another process used the name
	// meanwhile. Publish it again: then it is stored, once or twice. For a record with a
	// SequenceID see [MessageID.Deduplicated].
	ErrDeduplicated = record.ErrDeduplicated
	// ErrBadPartition is the outcome of a record whose explicit partition the topic does not have.
	ErrBadPartition = record.ErrBadPartition
	// ErrDeliverAt is the outcome of a record with DeliverAt given to a publisher that batches.
	// Delayed messages overtake batches, with a lower sequence id, and a broker with
	// deduplication would drop the records of those.
	ErrDeliverAt = record.ErrDeliverAt
	// ErrUnacknowledged is the outcome of a record that was accepted and not
	// acknowledged when the publisher closed. It may or may not be stored.
	ErrUnacknowledged = record.ErrUnacknowledged
	// ErrOwned says that a publisher with [ExclusiveOwnership] cannot open, or one with
	// [NamedOwnership] whose name is in use: another publisher has the topic.
	ErrOwned = record.ErrOwned
	// ErrProducerLost is the outcome of records that were not acknowledged when an owner (a
	// publisher without [SharedOwnership]) lost its producer, and of all that come later. Each
	// of them may be stored or not. Close the publisher and open another.
	ErrProducerLost = record.ErrProducerLost
	// ErrNotOrdered is the error of EntryWriter.Store for records without a position, with a negative
	// one, or whose positions do not rise.
	ErrNotOrdered = publish.ErrNotOrdered
	// ErrInDoubt is the error of EntryWriter.Store if it is unknown whether the entry was stored.
	ErrInDoubt = publish.ErrInDoubt
	// ErrRunning is returned by Run, RunAsync and Drain when the consumer is inside one of them
	// already.
	ErrRunning = consume.ErrRunning
	// ErrOwnershipLost is the cause of a partition's context that ended because the broker delivers
	// the partition to another consumer, or may do so.
	ErrOwnershipLost = consume.ErrOwnershipLost
	// ErrEncrypted ends a [Reader] at an encrypted message: the library has no keys. The error's text
	// has the message's id. A consumer does not return it: it leaves the message in the subscription.
	ErrEncrypted = record.ErrEncrypted
	// ErrSubscriptionBusy is returned by [Client.Redrive] when the subscription has a consumer.
	ErrSubscriptionBusy = redrive.ErrSubscriptionBusy
	// ErrNotFound is in the error of a call of the admin API about a topic, a subscription or a
	// namespace that does not exist.
	ErrNotFound = adminapi.ErrNotFound
	// ErrExists is in the error of a call that creates something that exists already with other
	// properties.
	ErrExists = adminapi.ErrExists
	// ErrBusy is in the error of a call of the admin API that has to wait for others: clients use the
	// topic or the subscription, or the same operation runs.
	ErrBusy = adminapi.ErrBusy
)

// TooLargeError is the outcome of a record that the broker refuses for its size. errors.Is finds
// [ErrTooLarge] in it.
type TooLargeError = record.TooLargeError

// UnacknowledgedError is returned by [Publisher.Close] when its context ended before every
// accepted record was acknowledged.
type UnacknowledgedError = record.UnacknowledgedError
