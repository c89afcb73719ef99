package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// SASL is how the client authenticates.
type SASL struct {
	// Mechanism is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER. PLAIN and OAUTHBEARER show
	// the secret to whoever can read the connection: use them with TLS. Default: none.
	Mechanism string `yaml:"mechanism"`
	// Username is the user name for PLAIN and SCRAM.
	Username string `yaml:"username"`
	// Password is the password for PLAIN and SCRAM. Give either this or password_file.
	Password secret.String `yaml:"password"`
	// PasswordFile holds the password for PLAIN and SCRAM. It is read at each connection.
	PasswordFile string `yaml:"password_file"`
	// TokenFile holds the token for OAUTHBEARER. It is read at each connection.
	TokenFile string `yaml:"token_file"`
	// OAuth2 gets the token of OAUTHBEARER from an authorization server.
	OAuth2 OAuth2 `yaml:"oauth2"`
}

// OAuth2 is the client credentials flow (RFC 6749, section 4.4).
type OAuth2 struct {
	// TokenURL is the authorization server's token endpoint.
	TokenURL string `yaml:"token_url"`
	// ClientID is the id of this client at the authorization server.
	ClientID string `yaml:"client_id"`
	// ClientSecret is the secret of the client. Give either this or client_secret_file.
	ClientSecret secret.String `yaml:"client_secret"`
	// ClientSecretFile holds the secret of the client.
	ClientSecretFile string `yaml:"client_secret_file"`
	// Scopes are the scopes that the client asks for. Default: none.
	Scopes []string `yaml:"scopes"`
	// CAFile holds the PEM certificates of the authorities to trust for the authorization server.
	// Default: the system's.
	CAFile string `yaml:"ca_file"`
}

func (s SASL) validate() error {
	errs := []error{
		config.CheckFile("sasl.password_file", s.PasswordFile), config.CheckFile("sasl.token_file", s.TokenFile),
		config.CheckFile("sasl.oauth2.client_secret_file", s.OAuth2.ClientSecretFile),
	}
	switch s.Mechanism {
	case "":
		unused := s.Username == "" && s.Password == "" && s.PasswordFile == "" && s.TokenFile == "" && s.OAuth2.TokenURL == ""
		errs = append(errs, config.Require(unused, "sasl.mechanism", "must be set for the other keys of sasl to have an effect"))
	case sarama.SASLTypePlaintext, sarama.SASLTypeSCRAMSHA256, sarama.SASLTypeSCRAMSHA512:
		errs = append(errs,
			config.Require(s.Username != "", "sasl.username", "must not be empty with mechanism %s", s.Mechanism),
			config.Require((s.Password == "") != (s.PasswordFile == ""),
				"sasl.password", "must be given with mechanism %s, either here or by password_file", s.Mechanism))
	case sarama.SASLTypeOAuth:
		errs = append(errs, config.Require((s.TokenFile == "") != (s.OAuth2.TokenURL == ""),
			"sasl", "must have token_file or oauth2.token_url, not both, with mechanism %s", s.Mechanism), s.OAuth2.validate())
	default:
		errs = append(errs, config.CheckOneOf("sasl.mechanism", s.Mechanism, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"))
	}
	return errors.Join(errs...)
}

func (o OAuth2) validate() error {
	if o.TokenURL == "" {
		return nil
	}
	u, err := url.Parse(o.TokenURL)
	return errors.Join(
		config.Require(err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http"),
			"sasl.oauth2.token_url", "must be an https URL, got %q", o.TokenURL),
		config.Require(o.ClientID != "", "sasl.oauth2.client_id", "must not be empty"),
		config.Require((o.ClientSecret == "") != (o.ClientSecretFile == ""),
			"sasl.oauth2.client_secret", "must be given, either here or by client_secret_file"),
		config.CheckAuthorities("sasl.oauth2.ca_file", o.CAFile))
}

// apply sets up the mechanism for sarama.
func (s SASL) apply(conf *sarama.Config) error {
	if s.Mechanism == "" {
		return nil
	}
	conf.Net.SASL.Enable = true
	conf.Net.SASL.Mechanism = sarama.SASLMechanism(s.Mechanism)
	if s.Mechanism == sarama.SASLTypeOAuth {
		token, err := s.token()
		conf.Net.SASL.TokenProvider = token
		return err
	}
	password, err := s.password()
	if err != nil {
		return err
	}
	conf.Net.SASL.User, conf.Net.SASL.Password = s.Username, password
	mechanism, err := s.mechanism()
	conf.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{mechanism: mechanism} }
	return err
}

// scramClient is one SCRAM exchange (RFC 5802) of sarama, done by franz-go. Step fails for a broker
// that does not prove that it knows the password.
type scramClient struct {
	mechanism sasl.Mechanism
	session   sasl.Session
	first     []byte // the client's first message
	done      bool
}

func (c *scramClient) Begin(string, string, string) (err error) {
	c.session, c.first, err = c.mechanism.Authenticate(context.Background(), "")
	return err
}

func (c *scramClient) Step(challenge string) (answer string, err error) {
	if challenge == "" {
		return string(c.first), nil
	}
	var text []byte
	c.done, text, err = c.session.Challenge([]byte(challenge))
	return string(text), err
}

func (c *scramClient) Done() bool { return c.done }

// password is that of PLAIN and SCRAM.
func (s SASL) password() (string, error) {
	password, err := secret.Resolve(s.Password, s.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("sasl.password: %w", err)
	}
	return password.Reveal(), nil
}

// tokenProvider gets the token of OAUTHBEARER.
type tokenProvider func() (string, error)

// Token implements sarama.AccessTokenProvider.
func (b tokenProvider) Token() (*sarama.AccessToken, error) {
	token, err := b()
	return &sarama.AccessToken{Token: token}, err
}

// token reads the token's file each time, or gets the token from the authorization server and keeps
// it until shortly before it expires.
func (s SASL) token() (tokenProvider, error) {
	if s.TokenFile != "" {
		return func() (string, error) {
			token, err := secret.ReadFile(s.TokenFile)
			return token.Reveal(), err
		}, nil
	}
	source, err := s.OAuth2.source()
	if err != nil {
		return nil, err
	}
	return func() (string, error) {
		token, err := source.Token()
		if err != nil {
			return "", err
		}
		return token.AccessToken, nil
	}, nil
}

// mechanism is what franz-go needs; nil for none. It reads files at each connection.
func (s SASL) mechanism() (sasl.Mechanism, error) {
	login := func(context.Context) (scram.Auth, error) {
		password, err := s.password()
		return scram.Auth{User: s.Username, Pass: password}, err
	}
	switch s.Mechanism {
	case sarama.SASLTypePlaintext:
		return plain.Plain(func(ctx context.Context) (plain.Auth, error) {
			auth, err := login(ctx)
			return plain.Auth{User: auth.User, Pass: auth.Pass}, err
		}), nil
	case sarama.SASLTypeSCRAMSHA256:
		return scram.Sha256(login), nil
	case sarama.SASLTypeSCRAMSHA512:
		return scram.Sha512(login), nil
	case sarama.SASLTypeOAuth:
		token, err := s.token()
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := token()
			return oauth.Auth{Token: token}, err
		}), err
	}
	return nil, nil //nolint:nilnil // no mechanism is no fault
}

func (o OAuth2) source() (oauth2.TokenSource, error) {
	key, err := secret.Resolve(o.ClientSecret, o.ClientSecretFile)
	if err != nil {
		return nil, fmt.Errorf("sasl.oauth2.client_secret: %w", err)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true} // one request in an hour
	if o.CAFile != "" {
		pool, err := config.ReadAuthorities(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("sasl.oauth2.ca_file: %w", err)
		}
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	}
	flow := clientcredentials.Config{ClientID: o.ClientID, ClientSecret: key.Reveal(), TokenURL: o.TokenURL, Scopes: o.Scopes}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	return flow.TokenSource(context.WithValue(context.Background(), oauth2.HTTPClient, client)), nil
}
