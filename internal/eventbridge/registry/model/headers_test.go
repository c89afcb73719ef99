package model_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
)

func TestHeadersOfAWebhook(t *testing.T) {
	many := map[string]string{}
	for c := range 40 {
		many["X-"+strings.Repeat("a", c+1)] = "1"
	}
	for name, test := range map[string]struct {
		headers map[string]string
		want    []string // pointers below /target/webhook/headers, and what the fault says
	}{
		"a header":            {map[string]string{"X-Key": "a b", "Authorization": "Basic abc"}, nil},
		"hop by hop":          {map[string]string{"transfer-encoding": "chunked"}, []string{"/transfer-encoding: must not be given: it belongs to one connection"}},
		"host":                {map[string]string{"Host": "inside"}, []string{"/Host: must not be given: HTTP itself"}},
		"content type":        {map[string]string{"Content-Type": "a/b"}, []string{"/Content-Type: must not be given: it follows from mode"}},
		"an attribute":        {map[string]string{"CE-id": "1"}, []string{"/CE-id: must not be given: Eventbridge sets headers that begin with ce-"}},
		"a signature":         {map[string]string{"webhook-signature": "1"}, []string{"/webhook-signature: must not be given"}},
		"hops":                {map[string]string{"aviary-hops": "0"}, []string{"/aviary-hops: must not be given"}},
		"no name":             {map[string]string{"a b": "x"}, []string{"/a b: the key must be the name"}},
		"a name with a slash": {map[string]string{"a/b": "x"}, []string{"/a~1b: the key must be the name"}},
		"two lines":           {map[string]string{"X-A": "hidden\r\nX-B: 1"}, []string{"/X-A: must not hold line breaks"}},
		"twice":               {map[string]string{"X-A": "1", "x-a": "2"}, []string{"/x-a: the header occurs twice"}},
		"too many":            {many, []string{": must be at most 32 headers"}},
	} {
		t.Run(name, func(t *testing.T) {
			headers, err := json.Marshal(test.headers)
			require.NoError(t, err)
			_, err = model.DecodeSubscriber([]byte(`{"rules":[{"name":"r","pattern":{"type":["x"]}}],
				"target":{"webhook":{"url":"https://example.com","headers":`+string(headers)+`}}}`), "orders", "mail", model.Checks{})
			if test.want == nil {
				require.NoError(t, err)
				return
			}
			faults := storetest.Faults(t, err)
			require.Len(t, faults, len(test.want), "%v", faults)
			for i, want := range test.want {
				assert.True(t, strings.HasPrefix(faults[i], "/target/webhook/headers"+want), faults[i])
				assert.NotContains(t, faults[i], "hidden")
			}
		})
	}
}
