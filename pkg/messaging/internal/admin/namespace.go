package admin

import (
	"context"
	"net/http"
)

// Retention is what a namespace keeps of acknowledged messages, as the API has it: -1 has no limit.
type Retention struct {
	Minutes   int `json:"retentionTimeInMinutes"`
	Megabytes int `json:"retentionSizeInMB"`
}

// Retention returns a namespace's own retention, nil when it has none.
func (c *Client) Retention(ctx context.Context, namespace string) (*Retention, error) {
	var r *Retention
	err := c.getPolicy(ctx, namespace, "retention", &r)
	return r, err
}

// SetRetention gives a namespace a retention of its own.
func (c *Client) SetRetention(ctx context.Context, namespace string, r Retention) error {
	return c.do(ctx, http.MethodPost, namespacePath("namespaces", namespace)+"/retention", r, nil)
}

// Deduplication returns a namespace's own setting, nil when it has none.
func (c *Client) Deduplication(ctx context.Context, namespace string) (*bool, error) {
	var on *bool
	err := c.getPolicy(ctx, namespace, "deduplication", &on)
	return on, err
}

// SetDeduplication gives a namespace a setting of its own.
func (c *Client) SetDeduplication(ctx context.Context, namespace string, on bool) error {
	return c.do(ctx, http.MethodPost, namespacePath("namespaces", namespace)+"/deduplication", on, nil)
}

// getPolicy decodes a policy of a namespace into out, and leaves it as it is when the namespace has
// none of its own: the answer then is empty.
func (c *Client) getPolicy(ctx context.Context, namespace, policy string, out any) error {
	_, data, err := c.ask(ctx, http.MethodGet, namespacePath("namespaces", namespace)+"/"+policy, nil, maxAnswer)
	if err != nil || len(data) == 0 {
		return err
	}
	return c.decode(data, out)
}
