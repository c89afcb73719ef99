package zones

import (
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/aviaryhq/aviary/test/await"
)

// ask makes a request; 0: no answer came.
func ask(ctx context.Context, method, url, kind, body string) (status int) {
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// get is the body of an answer, or nothing.
func get(url string) string {
	resp, err := http.Get(url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(body)
}
