package ingest

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/secret"
)

// TestWebhookHandshake: a service may ask whether it may send, without credentials; the answer is
// the same for each bus, and does not replace credentials.
func TestWebhookHandshake(t *testing.T) {
	d := newDouble(t, func(c *Config) { c.Tenants = []TenantConfig{{Name: "shop", APIKeys: []secret.String{"key"}}} })
	options := func(bus string, headers ...string) (status int, header http.Header, body string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, d.url+"/v1/buses/"+bus+"/events", http.NoBody)
		require.NoError(t, err)
		for i := 0; i+1 < len(headers); i += 2 {
			req.Header.Add(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, http.MethodPost, resp.Header.Get("Allow"), headers)
		return resp.StatusCode, resp.Header, string(text)
	}
	for _, bus := range []string{"orders", "none"} {
		for rate, allowed := range map[string]string{"": "*", "120": "120"} {
			headers := []string{"WebHook-Request-Origin", "eventgrid.azure.net", "WebHook-Request-Callback", d.url + "/confirm"}
			if rate != "" {
				headers = append(headers, "WebHook-Request-Rate", rate)
			}
			status, header, body := options(bus, headers...)
			assert.Equal(t, http.StatusOK, status)
			assert.Empty(t, body)
			assert.Equal(t, []string{"eventgrid.azure.net"}, header.Values("WebHook-Allowed-Origin"))
			assert.Equal(t, []string{allowed}, header.Values("WebHook-Allowed-Rate"))
		}
		status, _, body := options(bus)
		assert.Equal(t, http.StatusMethodNotAllowed, status)
		assert.Contains(t, body, "takes POST, not OPTIONS")
		for _, headers := range [][]string{
			{"WebHook-Request-Origin", ""}, {"WebHook-Request-Origin", "a b"}, {"WebHook-Request-Origin", "<script>"}, {"WebHook-Request-Origin", "é"},
			{"WebHook-Request-Origin", strings.Repeat("a", 254)}, {"WebHook-Request-Origin", "a", "WebHook-Request-Origin", "b"},
			{"WebHook-Request-Origin", "a", "WebHook-Request-Rate", "0"}, {"WebHook-Request-Origin", "a", "WebHook-Request-Rate", "-1"},
			{"WebHook-Request-Origin", "a", "WebHook-Request-Rate", "many"}, {"WebHook-Request-Origin", "a", "WebHook-Request-Rate", strings.Repeat("9", 30)},
			{"WebHook-Request-Origin", "a", "WebHook-Request-Rate", "1", "WebHook-Request-Rate", "2"},
		} {
			status, header, _ := options(bus, headers...)
			assert.Equal(t, http.StatusBadRequest, status, headers)
			assert.Empty(t, header.Get("WebHook-Allowed-Origin"), headers)
			assert.Empty(t, header.Get("WebHook-Allowed-Rate"), headers)
		}
	}
	assert.Equal(t, http.StatusUnauthorized, d.send(t, "A1", "WebHook-Request-Origin", "eventgrid.azure.net").status)
	assert.Equal(t, http.StatusAccepted, d.send(t, "A1", "WebHook-Request-Origin", "eventgrid.azure.net", "X-Api-Key", "key").status)
}
