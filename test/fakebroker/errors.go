package fakebroker

import "strconv"

// ServerError is an error code of the protocol (enum ServerError in PulsarApi.proto). The client
// recognises most of them by the name it prints, so the names matter as much as the numbers.
type ServerError int32

// The error codes of protocol version 20.
const (
	UnknownError                          ServerError = 0
	MetadataError                         ServerError = 1
	PersistenceError                      ServerError = 2
	AuthenticationError                   ServerError = 3
	AuthorizationError                    ServerError = 4
	ConsumerBusy                          ServerError = 5
	ServiceNotReady                       ServerError = 6
	ProducerBlockedQuotaExceededError     ServerError = 7
	ProducerBlockedQuotaExceededException ServerError = 8
	ChecksumError                         ServerError = 9
	UnsupportedVersionError               ServerError = 10
	TopicNotFound                         ServerError = 11
	SubscriptionNotFound                  ServerError = 12
	ConsumerNotFound                      ServerError = 13
	TooManyRequests                       ServerError = 14
	TopicTerminatedError                  ServerError = 15
	ProducerBusy                          ServerError = 16
	InvalidTopicName                      ServerError = 17
	IncompatibleSchema                    ServerError = 18
	ConsumerAssignError                   ServerError = 19
	TransactionCoordinatorNotFound        ServerError = 20
	InvalidTxnStatus                      ServerError = 21
	NotAllowedError                       ServerError = 22
	TransactionConflict                   ServerError = 23
	TransactionNotFound                   ServerError = 24
	ProducerFenced                        ServerError = 25
)

// String returns the name used in PulsarApi.proto.
func (e ServerError) String() string {
	names := [...]string{
		"UnknownError", "MetadataError", "PersistenceError", "AuthenticationError", "AuthorizationError", "ConsumerBusy",
		"ServiceNotReady", "ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException", "ChecksumError",
		"UnsupportedVersionError", "TopicNotFound", "SubscriptionNotFound", "ConsumerNotFound", "TooManyRequests",
		"TopicTerminatedError", "ProducerBusy", "InvalidTopicName", "IncompatibleSchema", "ConsumerAssignError",
		"TransactionCoordinatorNotFound", "InvalidTxnStatus", "NotAllowedError", "TransactionConflict",
		"TransactionNotFound", "ProducerFenced",
	}
	if e < 0 || int(e) >= len(names) {
		return "ServerError(" + strconv.Itoa(int(e)) + ")"
	}
	return names[e]
}
