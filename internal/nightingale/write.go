package nightingale

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/publish"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/internal/nightingale/tenant"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// receiver handles write requests. Its methods are in the order in which a request passes them.
type receiver struct {
	pools
	log       *zap.Logger
	refusals  refusal.Log
	metrics   *metrics
	settings  atomic.Pointer[settings] // changed by SIGHUP
	protocols []remotewrite.Protocol
	budget    *admission.Budget
	families  *families
	dedup     *publish.DedupCache
	topics    *publish.Topics // the publishing stage

	// Of the configuration:
	limits         remotewrite.Limits
	timeout        time.Duration
	format         format.Format
	messageBytes   int
	exemplarSeries bool

	background context.Context // of attempts to publish; ends with the service
	cancel     context.CancelFunc
	running    sync.WaitGroup // attempts in the background
}

// request is a write request on its way through the stages.
type request struct {
	tenant   string
	protocol remotewrite.Protocol
	hold     *admission.Hold // of the bytes in flight
	watch    stopwatch
	claim    publish.Claim
	space    *requestSpace
	contents batch.Contents
}

func newReceiver(log *zap.Logger, cfg Config, m *metrics, topics *publish.Topics) (*receiver, error) {
	v := &receiver{
		log: log, refusals: refusal.NewLog(log), metrics: m, limits: cfg.Limits, timeout: cfg.RequestTimeout,
		protocols: remotewrite.Protocols(), format: format.Find(cfg.Format), topics: topics,
		budget:   admission.NewBudget(int64(cfg.Limits.InFlightBytes), cfg.Tenants.InFlightShare, m.inFlightSize),
		families: newFamilies(cfg.Limits.MetadataFamilies), dedup: publish.NewDedupCache(cfg.Dedup),
		messageBytes: int(cfg.MessageBytes), exemplarSeries: cfg.ExemplarSeries == acceptSeries,
	}
	v.background, v.cancel = context.WithCancel(context.Background())
	return v, v.apply(cfg)
}

// close cancels the attempts in the background and waits until they have ended. The publisher must
// be closed before, so that it completes its records.
func (v *receiver) close(context.Context) error {
	v.cancel()
	v.running.Wait()
	return nil
}

// handler authenticates the sender of a request before anything of the request's body is read.
func (v *receiver) handler(w http.ResponseWriter, r *http.Request) {
	if err := v.settings.Load().senders.Admit(r); err != nil {
		v.answer(w, r, err)
		return
	}
	v.route(w, r)
}

// writePath is the path of remote write.
const writePath = "/api/v1/write"

// route answers another path or method with an error that names the right one: a wrong path is the
// most common mistake in a sender's configuration.
func (v *receiver) route(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != writePath:
		v.answer(w, r, refusal.UnknownPath(r.URL.Path, "remote write goes by POST to "+writePath))
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		v.answer(w, r, refusal.WrongMethod(r, http.MethodPost))
	default:
		v.write(w, r)
	}
}

func (v *receiver) write(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	v.metrics.inFlight.Inc()
	defer v.metrics.inFlight.Dec()
	v.answer(w, r, v.handle(w, r))
	v.metrics.requestTime.Observe(time.Since(began).Seconds())
}

// errUnfinished is the result of attempts that ended in a panic.
var errUnfinished = &refusal.Error{
	Status: http.StatusInternalServerError, Reason: "internal", Text: "the request could not be handled",
}

// handle returns nil if the whole request is acknowledged as Ack says.
func (v *receiver) handle(w http.ResponseWriter, r *http.Request) (err error) {
	req := &request{watch: stopwatch{metrics: v.metrics, last: time.Now()}}
	if req.protocol, err = remotewrite.Negotiate(v.protocols, r.Header); err != nil {
		return err
	}
	if req.protocol.Written {
		setWrittenHeaders(w.Header(), batch.Counts{}) // until samples are written
	}
	if req.tenant, err = tenant.Of(r.Header); err != nil {
		return err
	}
	req.hold = v.budget.Hold(req.tenant)
	defer req.hold.Release()

	body := v.bodies.get()
	if *body, err = httpserver.ReadBody(w, r, *body, req.hold, v.limits.Body()); err != nil {
		return err
	}
	httpserver.ClearReadDeadline(w)
	req.watch.lap("read")
	v.metrics.bodyBytes.WithLabelValues("compressed").Add(float64(len(*body)))

	ctx, cancel := context.WithTimeout(r.Context(), v.timeout)
	defer cancel()
	req.claim = publish.Claim{Cache: v.dedup, Key: publish.BodyKey{Tenant: req.tenant, Message: req.protocol.Message}}
	defer req.claim.Abort(errUnfinished)
	contents, err := v.handleBody(ctx, req, body)
	if err != nil {
		req.claim.Abort(err)
		return err
	}
	if req.protocol.Written {
		setWrittenHeaders(w.Header(), contents.Valid)
	}
	return contents.Invalid.Err(contents.Series())
}

// handleBody publishes the series of a body and waits for the outcome. If another request has the
// same body, it only waits.
func (v *receiver) handleBody(ctx context.Context, req *request, body *[]byte) (batch.Contents, error) {
	if !req.claim.Acquire(*body) {
		v.releaseBody(body)
		req.hold.Release()
		v.metrics.repeated.WithLabelValues(req.claim.State()).Inc()
		return v.await(ctx, req.claim.Attempt, batch.Contents{})
	}
	err := v.decompress(req, *body)
	v.releaseBody(body)
	if err != nil {
		return batch.Contents{}, err
	}
	if err := v.decode(req); err != nil {
		v.releaseSpace(req.space)
		return batch.Contents{}, err
	}
	return v.submit(ctx, req)
}

// decompress decompresses a body. The result does not refer to the body.
func (v *receiver) decompress(req *request, body []byte) error {
	size, err := remotewrite.DecodedLen(body, v.limits)
	if err != nil {
		return err
	}
	if err := req.hold.Grow(int64(size)); err != nil {
		return err
	}
	space := v.newSpace(len(body))
	if space.decoded, err = remotewrite.Decompress(space.decoded, body, size); err != nil {
		v.releaseSpace(space)
		return err
	}
	req.space = space
	req.hold.Shrink(int64(len(body)))
	req.watch.lap("decompress")
	v.metrics.bodyBytes.WithLabelValues("decoded").Add(float64(len(space.decoded)))
	return nil
}

// decode decodes and checks the series of a decompressed body, and applies the tenant's quota and
// the rules.
func (v *receiver) decode(req *request) error {
	current, space, c := v.settings.Load(), req.space, &req.contents
	b := &space.Batch
	// Labels may stay references only if no stage before the format needs their texts or the keys.
	b.References = v.format.ByPartition && current.rules == nil && !v.topics.Template.PerSeries
	b.Elements.Hold, b.ExemplarSeries = req.hold, v.exemplarSeries
	if err := req.protocol.Decode(b, space.decoded, v.limits); err != nil {
		return err
	}
	c.Cost = b.Cost()
	req.watch.lap("decode")

	c.Invalid, space.scratch = remotewrite.Validate(b, v.limits, space.scratch)
	for i := range b.Series {
		c.Valid.Add(b.Series[i].Counts())
	}
	if err := current.quotas.Admit(req.tenant, c.Cost); err != nil {
		v.metrics.countSamples(c.Valid, "throttled")
		return err
	}
	c.Metadata = v.families.learn(req.tenant, b.Metadata)
	v.families.describe(req.tenant, b)
	c.Filtered, space.scratch = current.rules.Apply(b, space.scratch)
	space.size = v.format.Size(b, &space.Packing)
	if bound := v.limits.PublishedBytes; int64(space.size) > int64(bound) {
		return refusal.TooLarge("published_bytes",
			"the messages of the request take about %d bytes, at most %s are allowed", space.size, bound)
	}
	req.watch.lap("validate")
	return nil
}

// submit publishes a decoded request and waits for the outcome. With deduplication it publishes in
// the background: the attempt continues after the request has timed out, and the sender's next
// request with the same body joins it.
func (v *receiver) submit(ctx context.Context, req *request) (batch.Contents, error) {
	contents := req.contents // publish changes those of the request
	if v.dedup.Entries == 0 {
		v.publish(ctx, req)
		return v.await(ctx, req.claim.Attempt, contents)
	}
	attempt := *req
	attempt.hold = req.hold.Transfer(req.hold.Bytes())
	attempt.space.Batch.Elements.Hold = attempt.hold // encoding takes memory, too
	req.claim.Owned = false
	v.running.Go(func() {
		defer attempt.hold.Release()
		defer attempt.claim.Abort(errUnfinished)
		err := app.Protect(func() error {
			v.publish(v.background, &attempt)
			return nil
		})
		if err != nil {
			v.log.Error("cannot publish a request", zap.Error(err), app.Stack(err))
		}
	})
	return v.await(ctx, req.claim.Attempt, contents)
}

// publish publishes a decoded request, completes its attempt, and counts it. It charges the tenant
// only if the sender will not repeat the request, so that each body is charged once.
func (v *receiver) publish(ctx context.Context, req *request) {
	messages, hold, space := v.messages.get(), req.hold, req.space
	messages.Properties, space.Packing.Limit = tenant.Properties(req.tenant), v.messageBytes
	delivered := v.topics.Publish(ctx, publish.Request{
		Claim: &req.claim, Format: v.format, Contents: &req.contents,
		Space: &space.Workspace, Size: space.size, Out: messages, Held: hold,
		Encoded: func() {
			req.watch.lap("encode")
			v.releaseSpace(space)
			hold.Shrink(hold.Bytes() - int64(messages.Size())) // only the messages stay in memory
		},
	})
	req.watch.lap("publish")
	hold.Release()
	v.metrics.bodyBytes.WithLabelValues("published").Add(float64(messages.Total))
	if delivered.Free {
		v.releaseMessages(messages)
	}
	if delivered.Err == nil {
		v.settings.Load().quotas.Charge(req.tenant, req.contents.Cost)
	}
	v.metrics.countContents(req.contents, delivered.Err)
	req.claim.Owned = false
	v.dedup.Complete(req.claim.Attempt, req.contents, delivered)
}

// await waits for the result of an attempt until the request times out.
func (v *receiver) await(ctx context.Context, a *publish.Attempt, contents batch.Contents) (batch.Contents, error) {
	result, err, complete := a.Wait(ctx)
	if complete {
		return result, err
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		return contents, refusal.ErrDisconnected
	}
	v.metrics.countSamples(contents.Valid, "unwritten")
	return contents, refusal.Unavailable("timeout", refusal.RetryUnavailable, "Pulsar did not acknowledge in time")
}

// answer writes and counts the response, and logs refused requests, see refusal.Log.
func (v *receiver) answer(w http.ResponseWriter, r *http.Request, err error) {
	if err == nil {
		v.metrics.requests.WithLabelValues("204").Inc()
		w.WriteHeader(http.StatusNoContent)
		return
	}
	refused := (*refusal.Error)(nil)
	if !errors.As(err, &refused) {
		refused = &refusal.Error{Status: http.StatusInternalServerError, Reason: "internal", Text: err.Error()}
	}
	v.metrics.requests.WithLabelValues(strconv.Itoa(refused.Status)).Inc()
	v.metrics.refused.WithLabelValues(refused.Reason).Inc()
	v.refusals.Write(r, r.Header.Get(tenant.Header), refused)
	if refused.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(refused.RetryAfter.Seconds())))
	}
	if refused.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="nightingale"`)
		httpserver.AnswerAtOnce(w, r)
	}
	if refused.CloseConnection {
		w.Header().Set("Connection", "close")
	}
	http.Error(w, truncate.Text(refused.Text, refusal.MaxAnswer), refused.Status)
}

// setWrittenHeaders sets the response headers of version 2, which say how many samples of each kind
// were written. Senders compare them with what they have sent, and report the rest as lost. So
// samples that the configuration filters out, or that were written before, count as written.
func setWrittenHeaders(header http.Header, c batch.Counts) {
	header.Set("X-Prometheus-Remote-Write-Samples-Written", strconv.Itoa(c.Samples))
	header.Set("X-Prometheus-Remote-Write-Histograms-Written", strconv.Itoa(c.Histograms))
	header.Set("X-Prometheus-Remote-Write-Exemplars-Written", strconv.Itoa(c.Exemplars))
}
