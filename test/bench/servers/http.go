package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// request sends a value as JSON, or nothing if it is nil. An answer other than 2xx is an error. The
// caller closes the body of the answer.
func request(ctx context.Context, method, url string, value any) (io.ReadCloser, error) {
	var body bytes.Buffer
	if value != nil {
		if err := json.NewEncoder(&body).Encode(value); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, &body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, text)
	}
	return resp.Body, nil
}

// Get reads the JSON of a URL into out.
func Get(ctx context.Context, url string, out any) error {
	body, err := request(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(body).Decode(out)
}

// Put sends a value as JSON.
func Put(ctx context.Context, url string, value any) error {
	body, err := request(ctx, http.MethodPut, url, value)
	if err != nil {
		return err
	}
	return body.Close()
}

// metricsTimeout bounds one request for metrics.
const metricsTimeout = 5 * time.Second

// Metrics reads the metrics of a service or a broker.
func Metrics(ctx context.Context, url string) (map[string]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	body, err := request(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(body)
}
