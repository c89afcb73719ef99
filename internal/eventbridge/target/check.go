package target

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/webhooksig"
)

// Check calls fault for what a target has that this process cannot use: names of connections that the
// configuration does not have, addresses that webhooks must not have, keys and certificates that
// cannot be read. model.ValidateSubscriber has checked the rest before. pointer is a JSON Pointer
// from the target. problem is for people, and follows the name of the field. Check connects to
// nothing, and resolves no name.
func (f *Factory) Check(t *model.Target, fault func(pointer, problem string)) {
	name := t.Kind()
	if check := kinds()[name].check; check != nil {
		check(f, t, func(pointer, problem string) { fault("/"+name+pointer, problem) })
	}
}

func (f *Factory) checkWebhook(c *model.Webhook, fault func(pointer, problem string)) {
	if err := f.checkURL(c.URL); err != nil {
		fault("/url", err.Error())
	}
	if _, err := webhooksig.New(c.SigningSecret); err != nil {
		fault("/signing_secret", err.Error())
	}
	if _, err := clientTLS(c.TLS); err != nil {
		fault("/tls", err.Error())
	}
	if c.OAuth2 != nil {
		if err := f.checkURL(c.OAuth2.TokenURL); err != nil {
			fault("/oauth2/token_url", err.Error())
		}
	}
}

// checkURL returns why a valid URL must not be connected to. The error does not repeat the URL, which
// may hold a secret.
func (f *Factory) checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return errors.New("must be a URL")
	}
	port := uint64(443)
	if u.Scheme == "http" {
		port = 80
	}
	if u.Port() != "" {
		if port, err = strconv.ParseUint(u.Port(), 10, 16); err != nil || port == 0 {
			return errors.New("must have a port from 1 to 65535, or none")
		}
	}
	if err := f.guard.checkHost(u.Hostname(), uint16(port)); err != nil {
		return fmt.Errorf("must be one that may be connected to: %w", err)
	}
	return nil
}

func checkConnection[C any](connections map[string]C, name, system string, fault func(pointer, problem string)) {
	if _, ok := connections[name]; ok {
		return
	}
	known := "there is none"
	if names := slices.Sorted(maps.Keys(connections)); len(names) > 0 {
		known = "known are " + strings.Join(names, ", ")
	}
	fault("/connection", fmt.Sprintf("must be a name below connections.%s in the configuration, got %q; %s", system, name, known))
}

func (f *Factory) checkPulsar(c *model.PulsarTarget, fault func(pointer, problem string)) {
	if c.Connection != "" {
		checkConnection(f.connections.Pulsar, c.Connection, "pulsar", fault)
	}
	if f.ownTopic(c.Topic) {
		fault("/topic", "must not be one of Eventbridge's own: events go to a bus by its HTTP API")
	}
}

// ownTopic reports whether a name is, or could become, that of one of Eventbridge's topics. It does
// so for each connection, because another connection may lead to the same cluster.
func (f *Factory) ownTopic(name string) bool {
	own, _ := strings.CutSuffix(shortTopic(f.topics.Registry()), "registry")
	return strings.HasPrefix(shortTopic(name), own)
}

// shortTopic returns tenant/namespace/name.
func shortTopic(name string) string {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "non-persistent://"), "persistent://")
	if !strings.Contains(name, "/") {
		return "public/default/" + name
	}
	return name
}
