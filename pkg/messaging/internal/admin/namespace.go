package admin

import (
	"context"
	"net/http"
)

// CreateNamespace creates a namespace in this cluster only. One that exists is an [ErrExists].
func (c *Client) CreateNamespace(ctx context.Context, namespace string) error {
	err := c.do(ctx, http.MethodPut, namespacePath("namespaces", namespace), nil, nil)
	return as(ErrExists, err, http.StatusConflict)
}

// Policy decodes a policy of a namespace into out, and leaves out as it is when the namespace has
// none of its own: the answer then is empty.
func (c *Client) Policy(ctx context.Context, namespace, policy string, out any) error {
	_, data, err := c.ask(ctx, http.MethodGet, namespacePath("namespaces", namespace)+"/"+policy, nil, maxAnswer)
	if err != nil || len(data) == 0 {
		return err
	}
	return c.decode(data, out)
}

// SetPolicy gives a namespace a policy of its own.
func (c *Client) SetPolicy(ctx context.Context, namespace, policy string, v any) error {
	return c.do(ctx, http.MethodPost, namespacePath("namespaces", namespace)+"/"+policy, v, nil)
}
