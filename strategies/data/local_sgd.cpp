// Local SGD: every rank trains alone and all average their parameters and optimizer states every `every` steps.
// Sources: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; McMahan et al., "Communication-Efficient Learning of Deep
// Networks from Decentralized Data", AISTATS 2017.
// Memory per rank: everything whole. Sent per rank: 2 (n − 1)/n · (parameters and states) every `every` steps.
// Departs from the papers: the clipping norm is a rank's own.
#include "strategies/strategies.h"

namespace trainer::strategies {
namespace {

class LocalSgd final : public DataStrategy {
 public:
  std::string name() const override { return "local_sgd"; }
  void gradient_ready(const Unit&, const Use&, Step&) const override {}
  void update(const Unit& unit, Step& step) const override { step.optimizer(unit); }
  bool averages() const override { return true; }
  void average(const Unit& unit, Step& step) const override {
    step.average_master(unit, data_axes());
    step.average_states(unit, data_axes());
  }
};

}  // namespace

std::unique_ptr<DataStrategy> make_local_sgd(const DataStrategyJob&) { return std::make_unique<LocalSgd>(); }

}  // namespace trainer::strategies
