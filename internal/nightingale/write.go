package nightingale

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/publish"
	"github.com/aviaryhq/aviary/internal/nightingale/relabel"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// receiver handles write requests.
type receiver struct {
	log       *zap.Logger
	refusals  refusal.Log
	metrics   *metrics
	limits    remotewrite.Limits
	timeout   time.Duration
	protocols []remotewrite.Protocol
	format    format.Format
	budget    *admission.Budget
	families  *families
	*deliveries
	settings atomic.Pointer[settings] // changed by SIGHUP, see take

	messageBytes   int
	exemplarSeries bool
	topics         *publish.Topics // the publishing stage

	bodies          sync.Pool // of *[]byte
	workspaces      sync.Pool // of *requestSpace
	largeWorkspaces sync.Pool
	outgoings       sync.Pool // of *publish.Outgoing
}

// requestSpace is the memory for handling a request. A request gets one after its body was read, so
// that slow senders use none. It releases it after encoding the last messages, before it waits for
// their acknowledgement.
type requestSpace struct {
	decoded, scratch []byte
	size             int // estimate of the messages
	publish.Workspace
}

func newReceiver(log *zap.Logger, cfg Config, m *metrics, out *publish.Topics) *receiver {
	return &receiver{
		log: log, refusals: refusal.NewLog(log), metrics: m, limits: cfg.Limits, timeout: cfg.RequestTimeout,
		protocols: remotewrite.Protocols(), format: format.Find(cfg.Format), topics: out,
		budget:     admission.NewBudget(int64(cfg.Limits.InFlightBytes), cfg.Tenants.InFlightShare, m.inFlightSize),
		families:   newFamilies(cfg.Limits.MetadataFamilies),
		deliveries: newDeliveries(cfg.Dedup), messageBytes: int(cfg.MessageBytes),
		exemplarSeries: cfg.ExemplarSeries == acceptSeries,
	}
}

// writePath is the path of remote write.
const writePath = "/api/v1/write"

// handler routes the service's requests. The error for another path or method names the right one:
// a wrong path is the most common mistake in a sender's configuration.
func (v *receiver) handler() http.Handler {
	router := chi.NewRouter()
	router.Post(writePath, v.write)
	router.NotFound(func(w http.ResponseWriter, r *http.Request) {
		v.refuse(w, r, refusal.UnknownPath(r.URL.Path, "remote write goes by POST to "+writePath))
	})
	router.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", http.MethodPost)
		v.refuse(w, r, refusal.WrongMethod(r, http.MethodPost))
	})
	return router
}

// refuse answers a request with an error before write handles it.
func (v *receiver) refuse(w http.ResponseWriter, r *http.Request, err error) {
	v.metrics.requests.WithLabelValues(strconv.Itoa(v.answer(w, r, err))).Inc()
}

// write answers one request.
func (v *receiver) write(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	v.metrics.inFlight.Inc()
	defer v.metrics.inFlight.Dec()
	status := v.answer(w, r, v.handle(w, r))
	v.metrics.requests.WithLabelValues(strconv.Itoa(status)).Inc()
	v.metrics.requestTime.Observe(time.Since(began).Seconds())
}

// handle runs all stages of a request. It returns nil if the whole request is acknowledged as Ack
// says.
func (v *receiver) handle(w http.ResponseWriter, r *http.Request) error {
	watch := &stopwatch{metrics: v.metrics, last: time.Now()}
	protocol, err := remotewrite.Negotiate(v.protocols, r.Header)
	if err != nil {
		return err
	}
	if protocol.Written {
		setWrittenHeaders(w.Header(), batch.Counts{}) // until samples are written
	}
	tenant, err := tenantOf(r.Header)
	if err != nil {
		return err
	}
	held := v.budget.Hold(tenant)
	defer held.Release()

	body := v.newBody()
	if *body, err = httpserver.ReadBody(w, r, *body, held, v.limits.Body()); err != nil {
		return err
	}
	httpserver.ClearReadDeadline(w)
	watch.lap("read")
	v.metrics.bodyBytes.WithLabelValues("compressed").Add(float64(len(*body)))

	ctx, cancel := context.WithTimeout(r.Context(), v.timeout)
	defer cancel()
	claim := &publish.Claim{Cache: v.DedupCache, Key: publish.BodyKey{Tenant: tenant, Message: protocol.Message}}
	defer claim.Abort(errUnfinished)
	contents, err := v.handleBody(ctx, body, protocol, claim, held, watch)
	if err != nil {
		claim.Abort(err)
		return err
	}
	if protocol.Written {
		setWrittenHeaders(w.Header(), contents.Valid)
	}
	return contents.Invalid.Err(contents.Series())
}

// handleBody publishes the series of a body and waits for the outcome. If another request has the
// same body, it only waits.
func (v *receiver) handleBody(ctx context.Context, body *[]byte, protocol remotewrite.Protocol, claim *publish.Claim, held *admission.Hold, watch *stopwatch) (batch.Contents, error) {
	if !claim.Acquire(*body) {
		v.releaseBody(body)
		held.Release()
		v.metrics.repeated.WithLabelValues(claim.State()).Inc()
		return v.await(ctx, claim.Attempt, batch.Contents{})
	}
	space, err := v.decompress(*body, held, watch)
	v.releaseBody(body)
	if err != nil {
		return batch.Contents{}, err
	}
	contents, err := v.decode(space, protocol, claim.Key.Tenant, held, watch)
	if err != nil {
		v.release(space)
		return batch.Contents{}, err
	}
	return v.submit(ctx, claim, space, contents, held, watch)
}

// decompress decompresses a body. The result does not refer to the body.
func (v *receiver) decompress(body []byte, held *admission.Hold, watch *stopwatch) (*requestSpace, error) {
	size, err := remotewrite.DecodedLen(body, v.limits)
	if err != nil {
		return nil, err
	}
	if err := held.Grow(int64(size)); err != nil {
		return nil, err
	}
	space := v.newWorkspace(len(body))
	if space.decoded, err = remotewrite.Decompress(space.decoded, body, size); err != nil {
		v.release(space)
		return nil, err
	}
	held.Shrink(int64(len(body)))
	watch.lap("decompress")
	v.metrics.bodyBytes.WithLabelValues("decoded").Add(float64(len(space.decoded)))
	return space, nil
}

// decode decodes and checks the series of a decompressed body, and applies the tenant's quota and
// the rules.
func (v *receiver) decode(space *requestSpace, protocol remotewrite.Protocol, tenant string, held *admission.Hold, watch *stopwatch) (c batch.Contents, err error) {
	now := v.settings.Load()
	b := &space.Batch
	b.Elements.Held, b.ExemplarSeries, b.Form = held, v.exemplarSeries, v.form(protocol, now.rules)
	if err := protocol.Decode(b, space.decoded, v.limits); err != nil {
		return c, err
	}
	c.Cost = b.Cost()
	watch.lap("decode")

	c.Invalid, space.scratch = remotewrite.Validate(b, v.limits, space.scratch)
	for i := range b.Series {
		c.Valid.Add(&b.Series[i])
	}
	if err := now.quotas.admit(tenant, c.Cost); err != nil {
		v.metrics.count(c.Valid, "throttled")
		return c, err
	}
	c.Metadata = v.families.learn(tenant, b.Metadata)
	v.families.describe(tenant, b)
	c.Filtered, space.scratch = now.rules.Apply(b, space.scratch)
	space.size = v.format.Size(b, &space.Packing)
	if bound := v.limits.PublishedBytes; int64(space.size) > int64(bound) {
		return c, refusal.TooLarge("published_bytes", "the messages of the request take about %d bytes, at most %s are allowed", space.size, bound)
	}
	watch.lap("validate")
	return c, nil
}

// form returns the form of labels that the format prefers, if the stages before it allow that.
func (v *receiver) form(protocol remotewrite.Protocol, r *relabel.Rules) batch.Form {
	symbolic := v.format.Symbols || v.format.References && protocol.Symbols
	return batch.Form{
		Symbolic: symbolic,
		Lean:     symbolic && r == nil && !v.topics.Template.PerSeries,
		LateKeys: v.format.ByPartition && r == nil,
	}
}

// answer writes the response and returns its status. It counts and logs refused requests, see
// refusal.Log.
func (v *receiver) answer(w http.ResponseWriter, r *http.Request, err error) int {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
		return http.StatusNoContent
	}
	refused := (*refusal.Error)(nil)
	if !errors.As(err, &refused) {
		refused = &refusal.Error{Status: http.StatusInternalServerError, Reason: "internal", Text: err.Error()}
	}
	v.metrics.refused.WithLabelValues(refused.Reason).Inc()
	v.refusals.Write(r, r.Header.Get(tenantHeader), refused)
	if refused.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(refused.RetryAfter.Seconds())))
	}
	if refused.Status == http.StatusUnauthorized {
		httpserver.AnswerAtOnce(w, r)
	}
	if refused.CloseConnection {
		w.Header().Set("Connection", "close")
	}
	http.Error(w, truncate.Text(refused.Text, refusal.MaxAnswer), refused.Status)
	return refused.Status
}

func (v *receiver) count(c batch.Contents, err error) {
	if left := c.Filtered.Total(); err == nil {
		v.metrics.count(c.Valid.Without(left), "written")
		v.metrics.count(left, "filtered")
		for reason, n := range c.Filtered {
			if entries := n.Entries(); entries > 0 {
				v.metrics.filtered.WithLabelValues(batch.FilterReason(reason)).Add(float64(entries))
			}
		}
	} else {
		v.metrics.count(c.Valid, "unwritten")
	}
	if len(c.Invalid.Reasons) > 0 {
		v.metrics.count(c.Invalid.Counts, "rejected")
	}
	for reason, n := range c.Invalid.Reasons {
		v.metrics.rejected.WithLabelValues(reason).Add(float64(n))
	}
	v.metrics.metadata.WithLabelValues("remembered").Add(float64(c.Metadata.Remembered))
	v.metrics.metadata.WithLabelValues("ignored").Add(float64(c.Metadata.Ignored))
	v.metrics.metadata.WithLabelValues("evicted").Add(float64(c.Metadata.Evicted))
	v.metrics.metadata.WithLabelValues("rejected").Add(float64(c.Invalid.Metadata))
}

func (v *receiver) newBody() *[]byte {
	if body, ok := v.bodies.Get().(*[]byte); ok {
		return body
	}
	return new([]byte)
}

// releaseBody keeps the memory of a body for another request, unless it is large: small requests
// must not hold large buffers.
func (v *receiver) releaseBody(body *[]byte) {
	if cap(*body) <= remotewrite.KeepBody {
		v.bodies.Put(body)
	}
}

// Used workspaces are kept for requests of the same kind, large or small. So there are never more
// large ones than the bound of bytes in flight has allowed at one time.
const (
	largeBody = 192 << 10 // compressed
	keepSmall = 4 << 20   // maximum size that is kept for small requests
	keepLarge = 48 << 20  // maximum size that is kept for large requests
)

func (v *receiver) newWorkspace(body int) *requestSpace {
	pool := &v.workspaces
	if body > largeBody {
		pool = &v.largeWorkspaces
	}
	if space, ok := pool.Get().(*requestSpace); ok {
		return space
	}
	return new(requestSpace)
}

// release keeps the workspace for another request, unless it is too large.
func (v *receiver) release(space *requestSpace) {
	space.Reset()
	switch size := cap(space.decoded) + cap(space.scratch) + space.Size(); {
	case size <= keepSmall:
		v.workspaces.Put(space)
	case size <= keepLarge:
		v.largeWorkspaces.Put(space)
	}
}

// releaseOutgoing keeps the memory of messages for another request, unless it is too large.
func (v *receiver) releaseOutgoing(out *publish.Outgoing) {
	if out.Capacity() <= 2*remotewrite.KeepBuffer {
		v.outgoings.Put(out)
	}
}

func (v *receiver) newOutgoing() *publish.Outgoing {
	if out, ok := v.outgoings.Get().(*publish.Outgoing); ok {
		out.Reset()
		return out
	}
	return new(publish.Outgoing)
}
