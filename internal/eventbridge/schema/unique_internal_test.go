package schema

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEqualNumbersHaveOneShortText(t *testing.T) {
	for _, equal := range [][]string{
		{"0", "-0", "0.00", "0e5", "-0.0E-400"},
		{"100", "1e2", "1E+2", "100.0", "0.1e3", "1000e-1"},
		{"-1.5", "-15e-1", "-0.150E1"},
		{"9e-400", "90e-401", "0.9e-399"},
		{"9e400", "90e399"},
	} {
		want := string(appendCanonical(nil, json.Number(equal[0])))
		assert.LessOrEqual(t, len(want), len(equal[0])+4)
		for _, n := range equal {
			assert.Equal(t, want, string(appendCanonical(nil, json.Number(n))), n)
		}
	}
	assert.NotEqual(t, appendCanonical(nil, json.Number("1e2")), appendCanonical(nil, json.Number("1e-2")))
	assert.NotEqual(t, appendCanonical(nil, json.Number("1")), appendCanonical(nil, json.Number("-1")))
}
