package wire

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPartsAreJoined(t *testing.T) {
	t.Parallel()
	part := func(position int64, n, parts int) *Header {
		return &Header{Position: position, Part: n, Parts: parts}
	}
	var j PartJoiner
	add := func(h *Header, payload string) string {
		whole, ok, err := j.Add(h, []byte(payload))
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(string(whole), " ", ok)
	}
	assert.Equal(t, "whole true", add(part(1, 1, 1), "whole"))
	assert.Equal(t, ErrPartsMissing.Error(), add(part(3, 2, 3), "b"))
	for range 2 { // parts come again
		assert.Equal(t, "a false", add(part(2, 1, 3), "a"))
	}
	assert.Equal(t, "ab false", add(part(3, 2, 3), "b"))
	assert.Equal(t, "ab false", add(part(2, 1, 3), "a"))
	for range 2 {
		assert.Equal(t, "abc true", add(part(4, 3, 3), "c"))
	}
	assert.Equal(t, ErrPartsMissing.Error(), add(part(6, 2, 3), "b"), "of the message behind it")
	assert.Equal(t, "d false", add(part(5, 1, 3), "d"))
	assert.Equal(t, "e false", add(part(7, 1, 2), "e"), "another one")
	assert.Equal(t, "whole true", add(part(9, 1, 1), "whole"))
	assert.Empty(t, j.payload)
}
