package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/pkg/secret"
)

// HiddenSecret stands for a secret wherever objects are shown: a [secret.String] becomes it in JSON
// and YAML. In a change it keeps the secret that is stored at the same place.
const HiddenSecret = "<redacted>"

// EachSecret calls f for each secret below v, a value that can be set, and stores what f returns.
// If f changes nothing, nothing is written. A map with a change is replaced by a copy.
func EachSecret(v reflect.Value, at string, f func(at string, s secret.String) secret.String) {
	switch {
	case v.Type() == reflect.TypeFor[secret.String]():
		old := secret.String(v.String())
		if old == "" {
			return
		}
		if now := f(at, old); now != old {
			v.SetString(now.Reveal())
		}
	case v.Kind() == reflect.Pointer && !v.IsNil():
		EachSecret(v.Elem(), at, f)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if name := keyOf(v.Type().Field(i)); name != "" && mayHoldSecrets(v.Field(i).Kind()) {
				EachSecret(v.Field(i), at+Step(name), f)
			}
		}
	case v.Type() == reflect.TypeFor[map[string]secret.String]():
		old, _ := v.Interface().(map[string]secret.String)
		changed := maps.Clone(old)
		for key := range old {
			element := reflect.New(v.Type().Elem()).Elem()
			element.SetString(old[key].Reveal())
			EachSecret(element, at+Step(key), f)
			changed[key] = secret.String(element.String())
		}
		if !maps.Equal(old, changed) {
			v.Set(reflect.ValueOf(changed))
		}
	}
}

func mayHoldSecrets(k reflect.Kind) bool {
	return k == reflect.String || k == reflect.Pointer || k == reflect.Struct || k == reflect.Map
}

// Clone returns a copy that shares nothing that can change.
func Clone(s *Subscriber) (*Subscriber, error) {
	plain, secrets, err := Split(s)
	if err != nil {
		return nil, err
	}
	made := new(Subscriber)
	if err := Join(plain, secrets, made); err != nil {
		return nil, err
	}
	for i := range s.Rules {
		made.Rules[i].compiled = s.Rules[i].compiled
	}
	return made, nil
}

// Split splits an object, a pointer to a Bus or a Subscriber, into JSON without the secrets, and
// the secrets by pointer.
func Split(object any) (plain json.RawMessage, secrets map[string]string, err error) {
	secrets = make(map[string]string)
	EachSecret(reflect.ValueOf(object).Elem(), "", func(at string, s secret.String) secret.String {
		secrets[at] = s.Reveal()
		return s
	})
	plain, err = Encode(object)
	return plain, secrets, err
}

// Join sets object from what Split returned.
func Join(plain json.RawMessage, secrets map[string]string, object any) error {
	if err := json.Unmarshal(plain, object); err != nil {
		return err
	}
	var missing []string
	EachSecret(reflect.ValueOf(object).Elem(), "", func(at string, s secret.String) secret.String {
		if stored, ok := secrets[at]; ok {
			return secret.String(stored)
		}
		missing = append(missing, at)
		return s
	})
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("secrets are missing: %s", strings.Join(missing, ", "))
	}
	return nil
}

// KeepSecrets puts the stored secrets where s has hidden ones. old may be nil. A secret that is
// sent to a server is kept only while the servers of the target stay the same: otherwise anyone who
// may change a target could have the secret sent to another server.
func KeepSecrets(s, old *Subscriber) (f FaultList) {
	stored := map[string]secret.String{}
	if old != nil {
		EachSecret(reflect.ValueOf(old).Elem(), "", func(at string, v secret.String) secret.String {
			stored[at] = v
			return v
		})
	}
	moved := old != nil && serversOf(&s.Target) != serversOf(&old.Target)
	EachSecret(reflect.ValueOf(s).Elem(), "", func(at string, v secret.String) secret.String {
		if !hidden(v) {
			return v
		}
		kept, ok := stored[at]
		switch sent := at != "/target/webhook/signing_secret" && at != "/target/webhook/tls/key"; {
		case !ok:
			f.Add(at, "no secret is stored here: give the secret")
		case sent && moved:
			f.Add(at, "must be given again, because it would be sent to another server than before")
		}
		return kept
	})
	return f
}

// serversOf returns the servers that get secrets of a target: the webhook's, and the one of OAuth2
// tokens.
func serversOf(t *Target) (servers [2]string) {
	if t.Webhook != nil {
		servers[0] = serverOf(t.Webhook.URL)
		if t.Webhook.OAuth2 != nil {
			servers[1] = serverOf(t.Webhook.OAuth2.TokenURL)
		}
	}
	return servers
}

// serverOf returns an address without its path.
func serverOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return strings.ToLower(u.Scheme + "://" + u.Host)
}

// Encode encodes JSON without the escapes of json.Marshal, which escapes <, > and &, in patterns,
// too.
func Encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
