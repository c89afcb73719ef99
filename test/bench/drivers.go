package main

import (
	"context"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// pieceSeconds bounds one measured piece.
const pieceSeconds = 5

// drivers compares the two Kafka clients for Go that could stand behind Pigeonhole, by
// messages per CPU second: producing with all acknowledgements, idempotent, LZ4, and
// consuming what was produced so.
func (b *bridgeBench) drivers(ctx context.Context) error {
	n := b.count(1_500_000)
	source, err := b.kafkaTopic("source")
	if err != nil {
		return err
	}
	if _, err := measure.Run(ctx, measure.Piece{Kind: "sarama-produce", URL: b.kafka, Topic: source, Payload: bridgePayload, Format: measure.Varied, Count: n, Seconds: 120}); err != nil {
		return err
	}
	for _, way := range []string{"produce", "consume"} {
		var sarama, franz []float64
		perCPU := func(driver string) func(int) (float64, error) {
			return func(int) (per float64, err error) {
				topic := source
				if way == "produce" {
					if topic, err = b.kafkaTopic("bare"); err != nil {
						return 0, err
					}
				}
				o, err := measure.Run(ctx, measure.Piece{
					Kind: driver + "-" + way, URL: b.kafka, Topic: topic, Payload: bridgePayload, Format: measure.Varied, Count: n, Seconds: pieceSeconds,
					Partitions: bridgeParts,
				})
				return float64(o.Messages) / o.CPU, err
			}
		}
		if err := measure.InTurn(b.Rounds, measure.Into(&franz, perCPU("franz")), measure.Into(&sarama, perCPU("sarama"))); err != nil {
			return err
		}
		ratios := measure.Ratios(franz, sarama)
		b.Row("franz-go, %s\t\t%.0f\t\tsarama\t\t%.0f\t%.3f (%.3f-%.3f)", way, measure.Median(franz), measure.Median(sarama), measure.Median(ratios), measure.Least(ratios), measure.Most(ratios))
		b.Figure("franz_vs_sarama_"+way+"_per_cpu_s", measure.Median(ratios))
	}
	return nil
}
