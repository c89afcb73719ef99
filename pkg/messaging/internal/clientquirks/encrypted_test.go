package clientquirks_test

import (
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// entry is an entry as producers write it. fields are of MessageMetadata, over the required ones.
func entry(fields []byte, payload string) []byte {
	meta := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "producer")
	meta = protowire.AppendVarint(protowire.AppendTag(meta, 2, protowire.VarintType), 0) // sequence_id
	meta = protowire.AppendVarint(protowire.AppendTag(meta, 3, protowire.VarintType), 1) // publish_time
	meta = append(meta, fields...)
	body := binary.BigEndian.AppendUint32(nil, uint32(len(meta)))
	body = append(append(body, meta...), payload...)
	raw := binary.BigEndian.AppendUint32([]byte{0x0e, 0x01}, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
	return append(raw, body...)
}

func TestEncryptedMessagesAreShown(t *testing.T) {
	key := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "key")
	key = protowire.AppendString(protowire.AppendTag(key, 2, protowire.BytesType), "value")
	encryptionKeys := protowire.AppendBytes(protowire.AppendTag(nil, 13, protowire.BytesType), key)
	for name, decryption := range map[string]*pulsar.MessageDecryptionInfo{"shown": clientquirks.ShowEncrypted(), "hidden": nil} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.PublishRaw(topic, entry(encryptionKeys, "secret"), 1)
			s.Publish(topic, fakebroker.Message{Payload: []byte("plain")})
			consumer := subscribe(t, connect(t, s.URL(), nil), func(o *pulsar.ConsumerOptions) { o.Decryption = decryption })
			if decryption != nil {
				require.NotNil(t, receive(t, consumer).GetEncryptionContext())
			}
			m := receive(t, consumer)
			require.Nil(t, m.GetEncryptionContext())
			require.Equal(t, "plain", string(m.Payload()))
		})
	}
}
