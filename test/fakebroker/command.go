package fakebroker

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Command is the type of a protocol command (BaseCommand.Type). In BaseCommand the field that holds
// a command's body has the same number as its type, which is all that encoding and decoding need to
// know.
type Command int32

// The commands this server reads or writes.
const (
	CommandConnect                      Command = 2
	CommandConnected                    Command = 3
	CommandSubscribe                    Command = 4
	CommandProducer                     Command = 5
	CommandSend                         Command = 6
	CommandSendReceipt                  Command = 7
	CommandSendError                    Command = 8
	CommandMessage                      Command = 9
	CommandAck                          Command = 10
	CommandFlow                         Command = 11
	CommandUnsubscribe                  Command = 12
	CommandSuccess                      Command = 13
	CommandError                        Command = 14
	CommandCloseProducer                Command = 15
	CommandCloseConsumer                Command = 16
	CommandProducerSuccess              Command = 17
	CommandPing                         Command = 18
	CommandPong                         Command = 19
	CommandRedeliverUnacknowledged      Command = 20
	CommandPartitionedMetadata          Command = 21
	CommandPartitionedMetadataResponse  Command = 22
	CommandLookup                       Command = 23
	CommandLookupResponse               Command = 24
	CommandSeek                         Command = 28
	CommandGetLastMessageID             Command = 29
	CommandGetLastMessageIDResponse     Command = 30
	CommandActiveConsumerChange         Command = 31
	CommandGetTopicsOfNamespace         Command = 32
	CommandGetTopicsOfNamespaceResponse Command = 33
	CommandGetSchema                    Command = 34
	CommandGetSchemaResponse            Command = 35
	CommandAckResponse                  Command = 38
	CommandGetOrCreateSchema            Command = 39
	CommandGetOrCreateSchemaResponse    Command = 40
)

// protocolVersion is v20, Pulsar 4.0's.
const protocolVersion = 20

// The ids that stand for no message (-1 as an unsigned number) and for the end of a topic (the
// greatest Java long).
const (
	noID     uint64 = 1<<64 - 1
	latestID uint64 = 1<<63 - 1
)

// CommandSubscribe.SubType.
const (
	subscriptionExclusive = iota
	subscriptionShared
	subscriptionFailover
	subscriptionKeyShared
)

// ProducerAccessMode.
const (
	accessShared = iota
	accessExclusive
	accessWaitForExclusive
	accessExclusiveWithFencing
)

// Values of the other enums in use.
const (
	ackCumulative             = 1 // CommandAck.AckType
	initialPositionEarliest   = 1 // CommandSubscribe.InitialPosition
	lookupConnect             = 1 // CommandLookupTopicResponse.LookupType
	lookupFailed              = 2
	partitionedMetadataFailed = 1 // CommandPartitionedTopicMetadataResponse.LookupType
	modeNonPersistent         = 1 // CommandGetTopicsOfNamespace.Mode
)

// encodeCommand writes a BaseCommand: type = 1, body = the field numbered like the type.
func encodeCommand(c Command, body message) []byte {
	return message(make([]byte, 0, len(body)+8)).num(1, uint64(c)).bytes(protowire.Number(c), body)
}

// decodeCommand returns a BaseCommand's type and body.
func decodeCommand(b []byte) (Command, []byte, error) {
	var typ Command
	bodies := map[Command][]byte{}
	err := eachField(b, func(f field) error {
		if f.num == 1 {
			typ = Command(f.n)
		} else {
			bodies[Command(f.num)] = f.b
		}
		return nil
	})
	if err != nil {
		return 0, nil, fmt.Errorf("decode command: %w", err)
	}
	return typ, bodies[typ], nil
}

// messageID is MessageIdData: ledgerId = 1, entryId = 2, partition = 3, batch_index = 4, ack_set =
// 5, batch_size = 6.
type messageID struct {
	ledger, entry uint64
	partition     int32
	batchIndex    int32
	ackSet        []uint64
}

func (id messageID) encode() message {
	m := message(nil).num(1, id.ledger).num(2, id.entry)
	if id.partition >= 0 {
		m = m.num(3, uint64(id.partition))
	}
	if id.batchIndex >= 0 {
		m = m.num(4, uint64(id.batchIndex))
	}
	return m
}

func decodeMessageID(b []byte) (messageID, error) {
	id := messageID{partition: -1, batchIndex: -1}
	err := eachField(b, func(f field) error {
		switch f.num {
		case 1:
			id.ledger = f.n
		case 2:
			id.entry = f.n
		case 3:
			id.partition = int32(f.n)
		case 4:
			id.batchIndex = int32(f.n)
		case 5:
			if f.b == nil {
				id.ackSet = append(id.ackSet, f.n)
				return nil
			}
			for rest := f.b; len(rest) > 0; {
				v, n := protowire.ConsumeVarint(rest)
				if n < 0 {
					return protowire.ParseError(n)
				}
				id.ackSet = append(id.ackSet, v)
				rest = rest[n:]
			}
		}
		return nil
	})
	return id, err
}

// topicRequest is CommandPartitionedTopicMetadata and CommandLookupTopic (topic = 1, request_id =
// 2), and CommandGetSchema and CommandGetOrCreateSchema (request_id = 1, topic = 2, version or
// schema = 3).
type topicRequest struct {
	topic     string
	requestID uint64
}

func decodeTopicRequest(b []byte) (r topicRequest, err error) {
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			r.topic = string(f.b)
		case 2:
			r.requestID = f.n
		}
		return nil
	})
	return r, err
}

type schemaRequest struct {
	requestID uint64
	topic     string
	value     []byte
}

func decodeSchemaRequest(b []byte) (r schemaRequest, err error) {
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			r.requestID = f.n
		case 2:
			r.topic = string(f.b)
		case 3:
			r.value = f.b
		}
		return nil
	})
	return r, err
}

// producerRequest is CommandProducer: topic = 1, producer_id = 2, request_id = 3, producer_name =
// 4, schema = 7, epoch = 8, user_provided_producer_name = 9, producer_access_mode = 10, topic_epoch
// = 11.
type producerRequest struct {
	topic        string
	id           uint64
	requestID    uint64
	name         string
	schema       []byte
	epoch        uint64
	userProvided bool
	access       int
	topicEpoch   uint64
	hasEpoch     bool
}

func decodeProducerRequest(b []byte) (r producerRequest, err error) {
	r.userProvided = true
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			r.topic = string(f.b)
		case 2:
			r.id = f.n
		case 3:
			r.requestID = f.n
		case 4:
			r.name = string(f.b)
		case 7:
			r.schema = f.b
		case 8:
			r.epoch = f.n
		case 9:
			r.userProvided = f.n != 0
		case 10:
			r.access = int(f.n)
		case 11:
			r.topicEpoch, r.hasEpoch = f.n, true
		}
		return nil
	})
	return r, err
}

// sendRequest is CommandSend: producer_id = 1, sequence_id = 2, num_messages = 3.
type sendRequest struct {
	producerID uint64
	sequenceID uint64
	messages   int
}

func decodeSendRequest(b []byte) (r sendRequest, err error) {
	r.messages = 1
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			r.producerID = f.n
		case 2:
			r.sequenceID = f.n
		case 3:
			r.messages = int(int32(f.n))
		}
		return nil
	})
	return r, err
}

// subscribeRequest is CommandSubscribe: topic = 1, subscription = 2, subType = 3, consumer_id = 4,
// request_id = 5, consumer_name = 6, durable = 8, start_message_id = 9, initialPosition = 13,
// force_topic_creation = 15.
type subscribeRequest struct {
	topic        string
	subscription string
	kind         int
	id           uint64
	requestID    uint64
	name         string
	durable      bool
	start        *messageID
	earliest     bool
	create       bool
}

func decodeSubscribeRequest(b []byte) (r subscribeRequest, err error) {
	r.durable, r.create = true, true
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			r.topic = string(f.b)
		case 2:
			r.subscription = string(f.b)
		case 3:
			r.kind = int(f.n)
		case 4:
			r.id = f.n
		case 5:
			r.requestID = f.n
		case 6:
			r.name = string(f.b)
		case 8:
			r.durable = f.n != 0
		case 9:
			id, err := decodeMessageID(f.b)
			r.start = &id
			return err
		case 13:
			r.earliest = f.n == initialPositionEarliest
		case 15:
			r.create = f.n != 0
		}
		return nil
	})
	return r, err
}

// idRequest is every command that is an id and one number: CommandCloseProducer,
// CommandCloseConsumer, CommandUnsubscribe and CommandGetLastMessageId (id = 1, request_id = 2),
// and CommandFlow (id = 1, messagePermits = 2).
type idRequest struct {
	id    uint64
	value uint64
}

func decodeIDRequest(b []byte) (r idRequest, err error) {
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			r.id = f.n
		case 2:
			r.value = f.n
		}
		return nil
	})
	return r, err
}

// ackRequest is CommandAck: consumer_id = 1, ack_type = 2, message_id = 3, request_id = 8.
type ackRequest struct {
	id           uint64
	cumulative   bool
	messages     []messageID
	requestID    uint64
	wantResponse bool
}

func decodeAckRequest(b []byte) (r ackRequest, err error) {
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			r.id = f.n
		case 2:
			r.cumulative = f.n == ackCumulative
		case 3:
			id, err := decodeMessageID(f.b)
			r.messages = append(r.messages, id)
			return err
		case 8:
			r.requestID, r.wantResponse = f.n, true
		}
		return nil
	})
	return r, err
}

// redeliverRequest is CommandRedeliverUnacknowledgedMessages: consumer_id = 1, message_ids = 2.
type redeliverRequest struct {
	id       uint64
	messages []messageID
}

func decodeRedeliverRequest(b []byte) (r redeliverRequest, err error) {
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			r.id = f.n
		case 2:
			id, err := decodeMessageID(f.b)
			r.messages = append(r.messages, id)
			return err
		}
		return nil
	})
	return r, err
}

// seekRequest is CommandSeek: consumer_id = 1, request_id = 2, message_id = 3, message_publish_time
// = 4.
type seekRequest struct {
	id        uint64
	requestID uint64
	message   *messageID
	millis    uint64
}

func decodeSeekRequest(b []byte) (r seekRequest, err error) {
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			r.id = f.n
		case 2:
			r.requestID = f.n
		case 3:
			id, err := decodeMessageID(f.b)
			r.message = &id
			return err
		case 4:
			r.millis = f.n
		}
		return nil
	})
	return r, err
}

// namespaceRequest is CommandGetTopicsOfNamespace: request_id = 1, namespace = 2, mode = 3.
type namespaceRequest struct {
	requestID uint64
	namespace string
	mode      int
}

func decodeNamespaceRequest(b []byte) (r namespaceRequest, err error) {
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			r.requestID = f.n
		case 2:
			r.namespace = string(f.b)
		case 3:
			r.mode = int(f.n)
		}
		return nil
	})
	return r, err
}

// decodeIdentity reads CommandConnect: auth_data = 3.
func decodeIdentity(b []byte) (identity string, err error) {
	err = eachField(b, func(f field) error {
		if f.num == 3 {
			identity = string(f.b)
		}
		return nil
	})
	return identity, err
}
