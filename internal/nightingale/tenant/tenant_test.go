package tenant

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

func TestTenantNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"": true, "a": true, "Kitchen-7_b.c!*'()": true, strings.Repeat("a", 150): true,
		strings.Repeat("a", 151): false, ".": false, "..": false, "a/b": false, "a b": false, "a|b": false, "ä": false, "a\x00": false,
	} {
		tenant, err := Of(http.Header{"X-Scope-Orgid": {name}})
		if ok {
			require.NoError(t, err, "%q", name)
			assert.Equal(t, name, tenant)
		} else {
			assert.Equal(t, http.StatusBadRequest, writetest.StatusOf(t, err), "%q", name)
		}
	}
	_, err := Of(http.Header{"X-Scope-Orgid": {"a", "b"}})
	assert.Equal(t, http.StatusBadRequest, writetest.StatusOf(t, err))
}

// spend admits samples and has them written.
func spend(q *Quotas, tenant string, n int) error {
	if err := q.Admit(tenant, n); err != nil {
		return err
	}
	q.Charge(tenant, n)
	return nil
}

func TestQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQuotas(Config{
			Default:   Quota{SamplesPerSecond: 10, Burst: 20},
			Overrides: map[string]Quota{"large": {SamplesPerSecond: 1000}, "free": {}},
		})
		require.NoError(t, spend(q, "a", 20))
		err := spend(q, "a", 10)
		assert.Equal(t, http.StatusTooManyRequests, writetest.StatusOf(t, err))
		assert.Contains(t, err.Error(), "10 samples per second")
		refused := err.(*refusal.Error) //nolint:errorlint // statusOf has looked
		assert.Equal(t, time.Second, refused.RetryAfter, "when it will fit")
		require.NoError(t, spend(q, "b", 20), "others are not touched")
		require.NoError(t, spend(q, "", 20), "nor are requests without a tenant")
		<-time.After(time.Second) // the bubble's clock
		require.NoError(t, spend(q, "a", 10))

		require.NoError(t, spend(q, "c", 100), "more than the burst, when the burst is there")
		<-time.After(9 * time.Second) // the bubble's clock
		require.Error(t, spend(q, "c", 20), "the rest is owed")
		<-time.After(time.Second) // the bubble's clock
		require.NoError(t, spend(q, "c", 20))

		require.NoError(t, spend(q, "large", 10_000), "the burst is that of ten seconds")
		require.Error(t, spend(q, "large", 1))
		for range 100 {
			require.NoError(t, spend(q, "free", 1_000_000))
		}
	})
}

// TestQuotasTrackABoundedNumberOfTenants: names made up by a sender neither cost
// memory nor give it more than a quota.
func TestQuotasTrackABoundedNumberOfTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQuotas(Config{Default: Quota{SamplesPerSecond: 1, Burst: 5}})
		q.maxTracked = 10
		admitted := 0
		for i := range 1000 {
			if spend(q, fmt.Sprint("tenant-", i), 5) == nil {
				admitted++
			}
			assert.LessOrEqual(t, len(q.tracked), 10)
		}
		assert.Equal(t, 11, admitted, "ten tracked ones, and one for all the others")
		<-time.After(10 * time.Second) // the bubble's clock
		require.NoError(t, spend(q, "new", 5))
		assert.Len(t, q.tracked, 1, "those that sent nothing meanwhile are forgotten")
	})
}
