package protofield

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

func TestFieldsAreBounded(t *testing.T) {
	var data []byte
	for field := protowire.Number(1); field <= 1000; field++ {
		data = protowire.AppendVarint(protowire.AppendTag(data, field, protowire.VarintType), uint64(field))
	}
	fields, err := Fields(data)
	require.NoError(t, err)
	require.Len(t, fields, maxField)
	require.EqualValues(t, 7, fields[7].Number)
}
