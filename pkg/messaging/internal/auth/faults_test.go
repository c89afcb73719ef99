package auth_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
)

// silent is a logger that says nothing.
type silent struct{}

func (silent) SubLogger(log.Fields) log.Logger { return silent{} }
func (silent) WithFields(log.Fields) log.Entry { return silent{} }
func (silent) WithField(string, any) log.Entry { return silent{} }
func (silent) WithError(error) log.Entry       { return silent{} }
func (silent) Debug(...any)                    {}
func (silent) Info(...any)                     {}
func (silent) Warn(...any)                     {}
func (silent) Error(...any)                    {}
func (silent) Debugf(string, ...any)           {}
func (silent) Infof(string, ...any)            {}
func (silent) Warnf(string, ...any)            {}
func (silent) Errorf(string, ...any)           {}
func broker(f *auth.Faults, at string) log.Logger {
	return f.Logger(silent{}).SubLogger(log.Fields{"remote_addr": "pulsar://" + at})
}

func observed() (*auth.Faults, *observer.ObservedLogs) {
	core, logs := observer.New(zap.WarnLevel)
	return auth.NewFaults(zap.New(core)), logs
}

func TestLastingFaultIsSaidOnce(t *testing.T) {
	f, logs := observed()
	one, two := broker(f, "one:6650"), broker(f, "two:6650")
	refused := func(l log.Logger) {
		l.Warnf("Failed to establish connection with broker: '%s'", "Failed to authenticate")
	}
	for range 3 {
		refused(one)
	}
	refused(two)
	require.Equal(t, 2, logs.Len())
	two.WithError(errors.New("connection refused")).Warn("Failed to connect to broker.")
	require.Equal(t, 2, logs.Len(), "brokers that are unavailable are not said")
	two.WithError(errors.New("tls: no")).Warn("Failed to connect to broker.")
	require.Equal(t, 3, logs.Len())
	one.Info("Connection is ready")
	refused(one)
	require.Equal(t, 4, logs.Len(), "it was well in between")
}

// raw is an underlying client whose lookups end with err when they are let go.
type raw struct {
	pulsar.Client
	asked chan struct{}
	let   chan error
}

func (r raw) TopicPartitions(topic string) ([]string, error) {
	r.asked <- struct{}{}
	return []string{topic}, <-r.let
}

func (r raw) Subscribe(pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	return nil, errors.New("server error: AuthorizationError: no")
}

func (r raw) CreateProducer(pulsar.ProducerOptions) (pulsar.Producer, error) {
	return nil, errors.New("connection error")
}

func TestLookupEndsAsSoonAsItIsKnownWhatIsInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, logs := observed()
		under := raw{asked: make(chan struct{}, 10), let: make(chan error)}
		client := f.Wrap(under)
		ended := make(chan error, 1)
		began := time.Now()
		go func() { _, err := client.TopicPartitions("t"); ended <- err }()
		<-under.asked
		broker(f, "one:6650").WithError(errors.New("tls: bad certificate")).Warn("Failed to connect to broker.")
		err := <-ended
		require.ErrorIs(t, err, auth.ErrTLS)
		require.ErrorContains(t, err, "one:6650: ")
		require.Equal(t, time.Second, time.Since(began), "another host might have done")

		// The next call joins the running request: the broker is not asked again.
		_, err = client.TopicPartitions("t")
		require.ErrorIs(t, err, auth.ErrTLS)
		require.Empty(t, under.asked)
		under.let <- nil
		synctest.Wait()
		topics, err := client.TopicPartitions("t")
		require.NoError(t, err)
		require.Equal(t, []string{"t"}, topics)
		require.Empty(t, under.asked, "its answer is kept for a moment")

		// Several failures in a row are said once, until one succeeds.
		for i, fails := range []bool{true, true, false, true} {
			go func() { _, err := client.TopicPartitions("u"); ended <- err }()
			<-under.asked
			if fails {
				under.let <- fmt.Errorf("request %d: %w", i, context.DeadlineExceeded)
				require.Error(t, <-ended)
			} else {
				under.let <- nil
				require.NoError(t, <-ended)
			}
		}
		require.Equal(t, 2, logs.FilterMessage("cannot look up topic").Len())
	})
}

func TestErrorsSayWhatTheyHide(t *testing.T) {
	f, _ := observed()
	client := f.Wrap(raw{})
	_, err := client.Subscribe(pulsar.ConsumerOptions{})
	require.ErrorIs(t, err, auth.ErrAuthorization)
	_, err = client.CreateProducer(pulsar.ProducerOptions{})
	require.EqualError(t, err, "connection error")
}
