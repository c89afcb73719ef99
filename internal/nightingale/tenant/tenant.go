// Package tenant checks the names of tenants, their quotas, and which sender may write as which
// tenant. It must not import another package of Nightingale.
package tenant

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// Header names the tenant of a request, as in Mimir, Loki and others.
const Header = "X-Scope-OrgID"

const (
	maxName  = 150 // bytes
	nameText = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!-_.*'()"
)

// Check accepts the same names as Mimir.
func Check(name string) error {
	switch {
	case len(name) > maxName:
		return fmt.Errorf("a tenant's name has at most %d bytes, this one has %d", maxName, len(name))
	case name == "." || name == "..":
		return fmt.Errorf("%q cannot be a tenant's name", name)
	case strings.Trim(name, nameText) != "":
		return errors.New("a tenant's name consists of letters, digits and !-_.*'()")
	}
	return nil
}

// Of returns the tenant of a request, empty if the request names none.
func Of(header http.Header) (string, error) {
	values := header[http.CanonicalHeaderKey(Header)]
	if len(values) > 1 {
		return "", refusal.Invalid("tenant", "%s is given %d times", Header, len(values))
	}
	name := header.Get(Header)
	if err := Check(name); err != nil {
		return "", refusal.Invalid("tenant", "%s: %v", Header, err)
	}
	return strings.Clone(name), nil // tables keep it for longer than the request
}

// Properties returns the properties of a tenant's messages, nil without a tenant.
func Properties(name string) map[string]string {
	if name == "" {
		return nil
	}
	return map[string]string{"tenant": name}
}
