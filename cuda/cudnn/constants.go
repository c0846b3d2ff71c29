package cudnn

// The numbers of cudnn_graph.h, version 9, that are used here.

// Kinds of descriptors.
const (
	kindPointwise          = 0
	kindEngine             = 2
	kindEngineConfig       = 3
	kindEngineHeuristic    = 4
	kindExecutionPlan      = 5
	kindOperationPointwise = 13
	kindOperationGraph     = 15
	kindTensor             = 17
	kindMatmul             = 18
	kindOperationMatmul    = 19
	kindReduction          = 21
	kindOperationReduction = 22
	kindOperationReshape   = 31
)

// Types of attributes.
const (
	typeHandle            = 0
	typeDataType          = 1
	typeBoolean           = 2
	typeInt64             = 3
	typeFloat             = 4
	typeHeuristicMode     = 8
	typeNumericalNote     = 11
	typePointwiseMode     = 14
	typeDescriptor        = 15
	typeReductionOperator = 18
)

// Attributes.
const (
	attrPointwiseMode = 0
	attrPointwiseMath = 1
	attrPointwiseAxis = 9

	attrHeuristicMode    = 200
	attrHeuristicGraph   = 201
	attrHeuristicResults = 202

	attrEngineConfigEngine = 300

	attrPlanHandle       = 400
	attrPlanEngineConfig = 401
	attrPlanWorkspace    = 402

	attrOpPointwise       = 750
	attrOpPointwiseX      = 751
	attrOpPointwiseB      = 752
	attrOpPointwiseY      = 753
	attrOpPointwiseAlpha1 = 754
	attrOpPointwiseAlpha2 = 755
	attrOpPointwiseT      = 758

	attrGraphHandle = 800
	attrGraphOps    = 801

	attrTensorAlignment = 900
	attrTensorType      = 901
	attrTensorDims      = 902
	attrTensorStrides   = 903
	attrTensorID        = 906
	attrTensorVirtual   = 907
	attrTensorByValue   = 908

	attrEngineIndex         = 1301
	attrEngineNumericalNote = 1303

	attrMatmulMath = 1500
	attrOpMatmulA  = 1520
	attrOpMatmulB  = 1521
	attrOpMatmulC  = 1522
	attrOpMatmul   = 1523

	attrReductionOperator = 1600
	attrReductionMath     = 1601
	attrOpReductionX      = 1610
	attrOpReductionY      = 1611
	attrOpReduction       = 1612

	attrOpReshapeX = 2200
	attrOpReshapeY = 2201
)

// Data types.
const (
	dataFloat32  = 0
	dataFloat16  = 2
	dataInt32    = 4
	dataBFloat16 = 9
	dataBoolean  = 11
)

// Modes of pointwise operations, of reductions and of the heuristic; a note of an engine.
const (
	pointwiseAdd      = 0
	pointwiseMul      = 1
	pointwiseDiv      = 6
	pointwiseSub      = 9
	pointwiseExp      = 13
	pointwiseLog      = 15
	pointwiseIdentity = 21
	pointwiseGE       = 303
	pointwiseIndex    = 501
	pointwiseSelect   = 601

	reduceAdd = 0
	reduceMax = 3

	heuristicA = 3

	noteNondeterministic = 4
)
