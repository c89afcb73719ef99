package cluster

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/ask"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// OpeningFailure returns what err means when a publisher that opens cannot be helped by waiting,
// otherwise nil. owns: opening fails while another publisher has the topic.
func OpeningFailure(err error, owns bool) error {
	is := func(code string) bool { return strings.Contains(err.Error(), code) }
	switch {
	case errors.Is(err, ErrAuthorization):
		return err
	case is("AuthorizationError"):
		return fmt.Errorf("%w: %w", ErrAuthorization, err)
	case is("TopicNotFound"):
		return fmt.Errorf("%w: %w", record.ErrTopicNotFound, err)
	case is("InvalidTopicName"):
		return fmt.Errorf("%w: %w", record.ErrInvalidTopic, err)
	case owns && (is("ProducerFenced") || is("ProducerBusy")):
		return fmt.Errorf("%w: %w", record.ErrOwned, err)
	default:
		return nil
	}
}

// NewBroker returns the broker that the client's Try… methods ask.
func NewBroker(cfg Config, faults *auth.Faults) (ask.Broker, error) {
	credentials, trusted, err := Credentials(cfg, faults)
	if err != nil {
		return ask.Broker{}, err
	}
	b := ask.Broker{Addresses: addressesOf(cfg.URL), Listener: cfg.ListenerName, Credentials: credentials}
	if !strings.HasPrefix(cfg.URL, "pulsar+ssl://") {
		return b, nil
	}
	b.TLS = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		RootCAs:            trusted,
		InsecureSkipVerify: cfg.TLS.Insecure, //nolint:gosec // as the configuration says
	}
	if cfg.Auth.CertFile != "" {
		b.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return credentials.GetTLSCertificate()
		}
	}
	return b, nil
}
